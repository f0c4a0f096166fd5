"""Speed of a training step beside TRL's, and beside what its matrix products alone would take.

Both libraries take turns, step by step, in one run. Writes docs/bench.md and docs/bench.json.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import typer
from rich.console import Console
from rich.progress import Progress

import machine
import report
import vocabulary
from floor import Floor, Work, floor_of
from grouprl.policy import load_policy
from grouprl.records.shared_prefixes import histories
from grouprl.records.tokens import read_rows
from grouprl.rollout.local.sampler import generate
from grouprl.storage.run_folder import write_json, write_text
from jobs import JOBS, Job, smaller
from race import Race, median, run_race, spread
from warm import warm_folder


def main(
    steps: Annotated[int, typer.Option(help="Measured steps of each library and job.")] = 24,
    docs: Annotated[Path, typer.Option(help="Where bench.md and bench.json are written.")] = Path("docs"),
    only: Annotated[str, typer.Option(help="Only jobs whose name begins with this.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="A smoke test: a few rows, two steps.")] = False,
) -> None:
    """Measure and write the report."""
    torch.set_num_threads(1)
    console, steps = Console(), 2 if quick else steps
    jobs = [job for name, job in JOBS.items() if name.startswith(only)]
    with tempfile.TemporaryDirectory() as scratch:
        races = {job.name: measure(job, Path(scratch), steps, quick, console) for job in jobs}
    memory = {size: {mode: vocabulary.measure(mode, size) for mode in vocabulary.MODES} for size in vocabulary.SIZES}
    speed = [row for job in jobs for row in report.speed_rows(job, races[job.name][0])]
    ratio = [report.ratio_row(job, *races[job.name]) for job in jobs]
    tables = {
        "speed": ("Seconds", report.SPEED, speed),
        "ratio": ("TRL : grouprl", report.RATIO, ratio),
        "memory": ("Memory of the log-prob step", report.MEMORY, report.memory_rows(memory)),
    }
    for title, head, rows in tables.values():
        report.show(console, title, head, rows)
    results = {
        "machine": machine.describe(),
        "steps": steps,
        "jobs": {job.name: numbers(job, *races[job.name]) for job in jobs},
        "memory_mb": memory,
    }
    docs.mkdir(parents=True, exist_ok=True)
    write_json(docs / "bench.json", results)
    words = {name: JOBS[name].words for name in ("A", "B")}
    texts = {key: report.markdown(head, rows) for key, (_, head, rows) in tables.items()}
    write_text(docs / "bench.md", report.page(results, words, texts, vocabulary.POSITIONS))


def measure(job: Job, scratch: Path, steps: int, quick: bool, console: Console) -> tuple[Race, Floor, float]:
    """Warm the model up, let both libraries take turns, time the products of the mean step."""
    job = smaller(job) if quick else job
    model = warm_folder(job, scratch / f"model-{job.name[0]}")
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task(f"{job.name}: {job.words}", total=None)
        race = run_race(job, model, scratch, steps, quick, lambda: progress.advance(bar))
    return race, floor_of(job, work_of(job, model, race)), alike(job, model)


def work_of(job: Job, model: Path, race: Race) -> Work:
    """Means of what this library sampled and trained on."""
    policy = load_policy(model)
    example = next(job.examples(1))

    def mean(key: str) -> float:
        return statistics.mean(step[key] for step in race.ours)

    trained = mean("rows_trained")
    return Work(
        sampled=mean("tokens"),
        trained=trained * mean("tokens"),
        rows_trained=trained * job.rows,
        prompts_trained=trained * job.prompts,
        prompt_tokens=len(policy.encode_prompt(example.prompt)),
        vocabulary=len(policy.tokenizer),
    )


def alike(job: Job, model: Path) -> float:
    """Tokens of a step's prompts and completions over those that differ in themselves or in what comes before them."""
    policy = load_policy(model)
    prompts = [policy.encode_prompt(example.prompt) for example in job.examples(job.prompts)]
    sampled = generate(policy, prompts, n=job.group, max_new_tokens=job.max_new_tokens, seeds=range(job.rows))
    shared = sum(map(len, prompts)) * (job.group - 1)  # a prompt read once is what everybody expects
    tree = histories(read_rows(sampled.tokens))
    return (int(tree.length_r.sum()) - shared) / tree.distinct


def numbers(job: Job, race: Race, products: Floor, repeated: float) -> dict[str, Any]:
    """Everything measured of one job, for docs/bench.json."""
    ratios = {key: race.ratios(key) for key in ("wall", "cpu")}
    return {
        "job": {key: value for key, value in asdict(job).items() if key != "words"},
        "ratio": {key: {"median": statistics.median(x), "quartiles": spread(x)} for key, x in ratios.items()},
        "goal": job.goal,
        "alike": repeated,
        "grouprl": {key: median(race.ours, key) for key in race.ours[0]},
        "trl": {key: median(race.theirs, key) for key in race.theirs[0]},
        "products": asdict(products) | {"seconds": products.seconds},
        "ours_over_products": median(race.ours, "cpu") / products.seconds,
        "steps": {"grouprl": race.ours, "trl": race.theirs},
    }


if __name__ == "__main__":
    typer.run(main)
