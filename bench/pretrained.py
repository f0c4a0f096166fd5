"""Speed and memory of a training step on a pretrained model of 135 million parameters, beside TRL's.

Both libraries take turns, step by step, one thread each, with the same library for their products. Writes
docs/bench_pretrained.md and .json, leg by leg for every kind of processor: what was measured before and is not measured
again stays.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import typer
from rich.console import Console

import machine
import pretrained_job as job
from gate import Worker
from grouprl.core.errors import InputError
from grouprl.evaluation.pass_at_k import mean_interval
from grouprl.policy.language.arithmetic import ProductKind, Shape, rate, timed
from grouprl.policy.language.gguf import converted_folder
from grouprl.policy.products import has_onednn
from grouprl.storage.run_folder import write_json, write_text
from pretrained_ours import UNMEASURED
from pretrained_report import page

KINDS: dict[str, ProductKind] = {"float32": torch.float32, "onednn": "onednn", "mixed": torch.bfloat16}
Step = dict[str, Any]


@dataclass(frozen=True)
class Leg:
    """Who takes turns: one precision of ours, and TRL's weights and products, or nobody.

    `theirs` is float32 (torch's own products), onednn (weights in float32, products by oneDNN) or bfloat16.
    """

    ours: str
    theirs: str | None


LEGS = {leg.ours: leg for leg in (Leg("float32", "float32"), Leg("onednn", "onednn"), Leg("mixed", "bfloat16"))}
TYPICAL: Shape = (1024, 576, 1536)
"""A product of the model, by which the types of a processor are compared."""


def main(
    model: Annotated[str, typer.Option(help="A folder of transformers, or a GGUF file that was converted.")] = "",
    steps: Annotated[int, typer.Option(help="Measured steps of each.")] = 5,
    legs: Annotated[str, typer.Option(help="Which precisions of ours to race, separated by commas.")] = "",
    trl: Annotated[str, typer.Option(help="The Python of an environment with TRL, if any.")] = sys.executable,
    trl_rows: Annotated[int, typer.Option(help="Rows of one of TRL's passes; fewer take less of its memory.")] = 64,
    device: Annotated[str, typer.Option(help="Where both train; on a GPU wall-clock times are compared.")] = "cpu",
    name: Annotated[str, typer.Option(help="Name of the page and of its data.")] = "bench_pretrained",
    docs: Annotated[Path, typer.Option(help="Where they are written.")] = Path("docs"),
) -> None:
    """Measure and write the report."""
    torch.set_num_threads(1)
    folder, console, stored = model_folder(model), Console(), docs / f"{name}.json"
    results = json.loads(stored.read_text(encoding="utf-8")) if stored.is_file() else {}
    known = facts(device)
    here = results.setdefault(known.get("gpu") or known["types"], {"legs": {}})
    here["bfloat16"] = relative_rate(device)
    for leg in chosen(legs, device, here["bfloat16"]):
        leg = leg if trl else Leg(leg.ours, None)
        with tempfile.TemporaryDirectory() as scratch:
            found = race(leg, Setting(folder, device, steps, trl, trl_rows), Path(scratch), console)
        here["legs"][leg.ours] = found | {"machine": known}
        write_json(stored, results)
        write_text(docs / f"{name}.md", page(results))


def model_folder(model: str) -> str:
    """Return the folder meant, by default the one converted last.

    Raises InputError where there is none.
    """
    if model:
        return str(converted_folder(Path(model))) if model.endswith(".gguf") else model
    cache = converted_folder(Path(__file__)).parent
    found = sorted(cache.glob("SmolLM2-135M*/config.json"), key=os.path.getmtime)
    if not found:
        raise InputError(f"{cache} holds no SmolLM2-135M", "this benchmark needs the model", "Run `make real` first")
    return str(found[-1].parent)


@dataclass(frozen=True)
class Setting:
    """What is the same for all legs."""

    model: str
    device: str
    steps: int
    trl: str
    trl_rows: int


def relative_rate(device: str) -> float:
    """Return how many times as fast products in bfloat16 are as those in float32."""
    kinds = (torch.bfloat16, torch.float32)
    wide, narrow = (rate(TYPICAL, device, clock=time.process_time, kind=kind) for kind in kinds)
    return wide / narrow


def chosen(legs: str, device: str, bfloat16: float) -> list[Leg]:
    """Return the legs called, by default all that the device and this torch can run; `mixed` where its products pay."""
    if legs:
        return [LEGS[name] for name in legs.split(",")]
    onednn = device == "cpu" and has_onednn()
    return [leg for name, leg in LEGS.items() if {"onednn": onednn, "mixed": bfloat16 > 1}.get(name, True)]


def facts(device: str) -> dict[str, str]:
    """Say on what was measured, and which types the processor multiplies by itself."""
    found = machine.describe(("torch", "transformers", "grouprl"))
    if device != "cpu":
        return {"gpu": torch.cuda.get_device_name(device), **found}
    return found | {"types": ", ".join(machine.wide_types()) or "neither AVX-512 nor AMX"}


def race(leg: Leg, setting: Setting, scratch: Path, console: Console) -> dict[str, Any]:
    """Let both take their measured steps, alternating, who begins changing every time."""
    model, total, device = setting.model, setting.steps + UNMEASURED, setting.device
    described = {
        "device": device,
        "rows": job.ROWS,
        "group": job.GROUP,
        "max_new_tokens": job.MAX_NEW_TOKENS,
        "prompts": [list(each.prompt) for each in job.examples(job.PROMPTS * (total + 1))],
    }
    taken: dict[str, list[Step]] = {"ours": []}
    with ExitStack() as stack:
        arguments = (model, str(scratch / "ours"), str(total), leg.ours, device)
        ours = Worker("pretrained_ours.py", *arguments, log=scratch / "o.log")
        turns = [("ours", stack.enter_context(ours))]
        if leg.theirs is not None:
            peers = (
                model,
                str(scratch / "theirs"),
                str(total),
                leg.theirs,
                str(setting.trl_rows),
                json.dumps(described),
            )
            theirs = Worker("pretrained_theirs.py", *peers, log=scratch / "t.log", python=setting.trl)
            turns.append(("theirs", stack.enter_context(theirs)))
            taken["theirs"] = []
        for number in range(total):
            for who, worker in turns if number % 2 else reversed(turns):
                taken[who].append(worker.step())
                console.print(f"{leg.ours} {number} {who}: {taken[who][-1]['cpu']:.1f} CPU-s", highlight=False)
    measured = {who: found[UNMEASURED:] for who, found in taken.items()}
    return summary(leg, measured, device) | {"steps": setting.steps, "trl_rows": setting.trl_rows}


def summary(leg: Leg, measured: dict[str, list[Step]], device: str) -> dict[str, Any]:
    """Return what each step of both took, the ratios pair by pair, and the share of useful arithmetic of ours."""
    key, found = "cpu" if device == "cpu" else "wall", dict[str, Any](precision=leg.ours, theirs_dtype=leg.theirs)
    for who, taken in measured.items():
        found[who] = {
            "seconds": [step[key] for step in taken],
            "tokens": [step["tokens"] for step in taken],
            "rss_mb": taken[-1]["rss_mb"],
        }
    if "theirs" in measured:
        seconds, tokens = (
            np.array(found["theirs"][what]) / np.array(found["ours"][what]) for what in ("seconds", "tokens")
        )
        found["ratio"] = {"step": ratio(seconds), "token": ratio(seconds / tokens)}
    return found | {"profile": useful(measured["ours"][-1], KINDS[leg.ours], device)}


def ratio(pairs: np.ndarray) -> list[float]:
    """Return the geometric mean of the ratios of pairs of steps, and its 95 % interval by Student's distribution."""
    found = mean_interval(np.log(pairs))
    return [math.exp(x) for x in (found.value, found.low, found.high)]


def useful(last: Step, kind: ProductKind, device: str) -> dict[str, Any]:
    """Seconds per step by part, those of the products alone, and their share."""
    count, clock = max(1, last["profiled"]), time.process_time if device == "cpu" else time.perf_counter

    def rate_of(shape: Shape) -> float:
        return rate(shape, device, clock=clock, kind=kind)

    products = {
        part: Counter({(m, k, n): times for m, k, n, times in found}) for part, found in last["products"].items()
    }
    alone = {part: timed(shapes, rate_of) for part, shapes in products.items()}
    best = max((rate_of(shape) for shapes in products.values() for shape in shapes), default=1.0)
    alone = {part: (seconds + last["attention"].get(part, 0.0) / best) / count for part, seconds in alone.items()}
    seconds = {part: value / count for part, value in last["parts"].items()}
    return {"seconds": seconds, "products": alone, "useful": sum(alone.values()) / max(1e-9, sum(seconds.values()))}


if __name__ == "__main__":
    typer.run(main)
