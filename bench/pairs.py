"""Speed and memory of a step on stored completions beside TRL's DPOTrainer, KTOTrainer and RewardTrainer.

Both libraries take turns, step by step, one thread each, on the same rows from the same weights; the losses of all
steps are compared. Writes docs/bench_pairs.md and .json, job by job: what is not measured again stays.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import typer
from rich.console import Console
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import machine
import pairs_job
from gate import Worker
from grouprl.policy import load_policy
from grouprl.rollout.prompt_stream import PromptStream
from grouprl.storage.run_folder import write_json, write_text
from grouprl.tasks import load_task
from pretrained import model_folder

UNMEASURED = 2
"""First steps of each worker, in which memory is found and kernels are chosen."""
SIZES = {"hidden": 128, "layers": 4, "heads": 4, "intermediate": 512, "max_positions": 1024}
LETTERS_A_WORD = 6
Step = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One race: a trainer, a shape of texts, a model; and how TRL holds its activations."""

    kind: str
    shape: str
    model: str
    activations: str = "keep"
    per_pass: int = pairs_job.ROWS

    @property
    def name(self) -> str:
        """What it is called in the record."""
        lean = "" if self.activations == "keep" else ", lean TRL"
        return f"{self.kind}, {self.shape}, {self.model}{lean}"


def jobs(sizes: str) -> Iterator[Job]:
    """Yield every job; the leanest of TRL's settings, pass by pass, is raced for DPO alone."""
    for model in sizes.split(","):
        for shape in pairs_job.SHAPES:
            yield from (Job(kind, shape, model) for kind in pairs_job.KINDS)
        yield Job("dpo", "dialogue", model, "recompute", 1)


def main(
    sizes: Annotated[str, typer.Option(help="Which models: tiny, 135M.")] = "tiny,135M",
    only: Annotated[str, typer.Option(help="Only jobs whose name begins with this.")] = "",
    steps: Annotated[int, typer.Option(help="Measured steps of each.")] = 6,
    precision: Annotated[
        str, typer.Option(help="Ours: float32, or onednn where the products are oneDNN's.")
    ] = "float32",
    trl: Annotated[str, typer.Option(help="The Python of an environment with TRL.")] = sys.executable,
    docs: Annotated[Path, typer.Option(help="Where the page and the record are written.")] = Path("docs"),
) -> None:
    """Measure and write the report."""
    torch.set_num_threads(1)
    console, stored = Console(), docs / "bench_pairs.json"
    results = json.loads(stored.read_text(encoding="utf-8")) if stored.is_file() else {}
    with tempfile.TemporaryDirectory() as scratch:
        for number, job in enumerate(each for each in jobs(sizes) if each.name.startswith(only)):
            place = Path(scratch) / str(number)
            place.mkdir()
            results[job.name] = race(job, place, steps, precision, trl) | {"machine": facts(trl)}
            console.print(_row(job.name, results[job.name]), end="", highlight=False)
            write_json(stored, results)
            write_text(docs / "bench_pairs.md", page(results))


def facts(trl: str) -> dict[str, str]:
    """Say on what was measured, and with which versions."""
    asked = [trl, "-c", "import importlib.metadata as m; print(m.version('trl'))"]
    version = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    return machine.describe(("torch", "transformers", "grouprl")) | {"trl": version}


def race(job: Job, place: Path, steps: int, precision: str, trl: str) -> dict[str, Any]:
    """Let both take their steps, alternating, who begins changing every time."""
    total, rows = steps + UNMEASURED, place / "rows.jsonl"
    pairs_job.write_rows(
        rows, job.kind, pairs_job.SHAPES[job.shape], total, LETTERS_A_WORD if job.model == "tiny" else 1
    )
    model, in_order = str(beginning(job, place / "model")), str(as_met(rows, place / "met.jsonl"))
    ours_arguments = (job.kind, model, str(rows), str(place / "ours"), str(total), precision)
    theirs_arguments = (
        job.kind,
        model,
        in_order,
        str(place / "theirs"),
        str(total),
        str(job.per_pass),
        job.activations,
    )
    taken: dict[str, list[Step]] = {"ours": [], "theirs": []}
    with (
        Worker("pairs_ours.py", *ours_arguments, log=place / "o.log") as ours,
        Worker("pairs_theirs.py", *theirs_arguments, log=place / "t.log", python=trl) as theirs,
    ):
        for number in range(total):
            turns = [("ours", ours), ("theirs", theirs)]
            for who, worker in turns if number % 2 else reversed(turns):
                taken[who].append(worker.step())
    return summary(taken) | {"precision": precision}


def beginning(job: Job, folder: Path) -> Path:
    """Return the folder of the weights that both begin from."""
    source = Path(model_folder("")) if job.model == "135M" else _tiny(folder)
    if job.kind != "reward":
        return source
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(source, padding_side="right")
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=1, dtype=torch.float32)
    if tokenizer.pad_token_id in (None, tokenizer.eos_token_id):  # both would read the score at another token
        tokenizer.add_special_tokens({"pad_token": "<|padding|>"})
        model.resize_token_embeddings(len(tokenizer))
    model.config.pad_token_id = tokenizer.pad_token_id
    scorer = folder.with_name("scorer")
    model.save_pretrained(scorer)
    tokenizer.save_pretrained(scorer)
    return scorer


def _tiny(folder: Path) -> Path:
    policy = load_policy("tiny", alphabet=" abcdefghijklmnopqrstuvwxyz", seed=pairs_job.SEED, **SIZES)
    policy.save(folder)
    return folder


def as_met(rows: Path, file: Path) -> Path:
    """Write the rows in the order in which this library's run meets them."""
    task = load_task(pairs_job.task(str(rows)), pairs_job.SEED)
    count = len(rows.read_text(encoding="utf-8").splitlines())
    met = [dict(example.columns) for _, example in PromptStream(task, pairs_job.SEED).take(count)]
    file.write_text("".join(json.dumps(row) + "\n" for row in met), encoding="utf-8")
    return file


def summary(taken: dict[str, list[Step]]) -> dict[str, Any]:
    """Return medians, ratios step by step, peak memory, and how far the losses are apart."""
    measured = {who: found[UNMEASURED:] for who, found in taken.items()}
    ratios = [b["cpu"] / a["cpu"] for a, b in zip(measured["ours"], measured["theirs"], strict=True)]
    apart = [abs(a["loss"] - b["loss"]) / abs(b["loss"]) for a, b in zip(taken["ours"], taken["theirs"], strict=True)]
    return {
        "seconds": {who: statistics.median(step["cpu"] for step in found) for who, found in measured.items()},
        "memory_mb": {who: found[-1]["rss_mb"] for who, found in taken.items()},
        "ratios": ratios,
        "losses": {who: [step["loss"] for step in found] for who, found in taken.items()},
        "losses_apart": max(apart),
    }


def page(results: dict[str, dict[str, Any]]) -> str:
    """Return the page."""
    names: dict[str, list[str]] = {}
    for name, found in results.items():
        names.setdefault(", ".join(f"{what} {value}" for what, value in found["machine"].items()), []).append(name)
    first, *others = names
    said = "".join([first, *(f"\n\n{'; '.join(names[each])}: {each}" for each in others)])
    text = (Path(__file__).parent / "pairs_page.md").read_text(encoding="utf-8")
    rows = "".join(_row(name, found) for name, found in results.items())
    return text.replace("{{rows}}", rows).replace("{{machine}}", said)


def _row(name: str, found: dict[str, Any]) -> str:
    ratios, seconds, memory = found["ratios"], found["seconds"], found["memory_mb"]
    cells = [
        name,
        f"{seconds['theirs']:.2f}",
        f"{seconds['ours']:.2f}",
        f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]",
        f"{memory['theirs']:.0f}",
        f"{memory['ours']:.0f}",
        f"{memory['ours'] / memory['theirs']:.2f}",
        f"{found['losses_apart']:.0e}",
    ]
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    typer.run(main)
