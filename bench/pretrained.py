"""Speed and memory of a training step on a pretrained model of 135 million parameters, beside TRL's.

Both libraries take turns, step by step, one thread each. Writes docs/bench_pretrained.md and .json, leg by leg: what
was measured before and is not measured again stays.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import typer
from rich.console import Console

import machine
import pretrained_job as job
from gate import Worker
from grouprl.core.errors import InputError
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
    """Who takes turns: one precision of ours, and TRL with weights in one type, or nobody."""

    ours: str
    theirs: str | None


LEGS = {leg.ours: leg for leg in (Leg("onednn", "float32"), Leg("mixed", "bfloat16"), Leg("float32", None))}


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
    results = json.loads(stored.read_text(encoding="utf-8")) if stored.is_file() else {"legs": {}}
    for leg in chosen(legs, device):
        leg = leg if trl else Leg(leg.ours, None)
        with tempfile.TemporaryDirectory() as scratch:
            found = race(leg, Setting(folder, device, steps, trl, trl_rows), Path(scratch), console)
        found |= {"machine": facts(device)} | earlier_race(results["legs"].get(leg.ours, {}), found)
        results["legs"][leg.ours] = found
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


def chosen(legs: str, device: str) -> list[Leg]:
    """Return the legs called, by default all that the device and this torch can run."""
    if legs:
        return [LEGS[name] for name in legs.split(",")]
    if device != "cpu":
        return [Leg("float32", "float32"), LEGS["mixed"]]
    return [leg for leg in LEGS.values() if leg.ours != "onednn" or has_onednn()]


def facts(device: str) -> dict[str, str]:
    """Say on what was measured, and which types the processor multiplies by itself."""
    found = machine.describe(("torch", "transformers", "grouprl"))
    if device != "cpu":
        return {"gpu": torch.cuda.get_device_name(device), **found}
    return found | {"types": ", ".join(machine.wide_types()) or "neither AVX-512 nor AMX"}


def earlier_race(old: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured of TRL on an earlier day, with that day, where it did not run this time."""
    if "theirs" in found or "theirs" not in old:
        return {}
    ratio = old["theirs"]["seconds"] / found["ours"]["seconds"]
    day = old.get("theirs_date", old["machine"]["date"])
    return {"theirs": old["theirs"], "theirs_dtype": old["theirs_dtype"], "theirs_date": day, "ratio": ratio}


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
    """Medians of both, ratios pair by pair, and the share of useful arithmetic of ours."""
    ours, found = measured["ours"], dict[str, Any](precision=leg.ours, theirs_dtype=leg.theirs)
    key = "cpu" if device == "cpu" else "wall"
    for who, taken in measured.items():
        found[who] = {
            "seconds": statistics.median(step[key] for step in taken),
            "rss_mb": taken[-1]["rss_mb"],
            "tokens": statistics.median(step["tokens"] for step in taken),
            "each": [step[key] for step in taken],
        }
    if "theirs" in measured:
        pairs = zip(measured["theirs"], ours, strict=True)
        found["ratio"] = statistics.median(theirs[key] / own[key] for theirs, own in pairs)
    return found | {"profile": useful(ours[-1], KINDS[leg.ours], device)}


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
