"""Short runs at good, tiny and huge learning rates, and what findings and plan say of them: docs/findings.md.

The runs of a task begin with one warmed-up model; with adapters each warms up its own. Recorded runs are not repeated.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.monitor.verdict import verdict
from grouprl.plan.plan import plan
from grouprl.storage.run_folder import write_json, write_text
from grouprl.train.loop import train

Settings = dict[str, Any]
DOCS = Path(__file__).parents[1] / "docs"
JSON, PAGE = DOCS / "findings.json", DOCS / "findings.md"
RATES = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1)
ADAPTER_RATES = (1e-3, 3e-3, 1e-2, 3e-2)
MODEL: Settings = {"name": "tiny", "tiny": {"layers": 2}}
TASKS: dict[str, tuple[Any, int]] = {
    "reverse": ({"name": "reverse", "length": 4, "noise": 0.15}, 250),
    "addition": ({"name": "addition", "digits": 1, "think": 0.3}, 250),
    "guess": ({"name": "guess", "numbers": 7, "noise": 0.3}, 150),
}
"""Tasks of this package, and the steps of their warm-up."""
COMMON: Settings = {
    "steps": 20,
    "batch": {"prompts": 16, "group_size": 8, "minibatches": 2},
    "optim": {"schedule": "constant"},
    "eval": {"every": 0, "final_prompts": 192, "samples": 2},
    "run": {"threads": 1, "rollouts_every": 0, "checkpoint_every": 10**6},
}
SAID = ("stands_still", "moves_too_fast", "no_gain", "collapse", "large_update")


def trials() -> Iterator[tuple[str, bool, float]]:
    """Yield task, whether adapters are trained, and learning rate."""
    yield from ((task, False, rate) for task in TASKS for rate in RATES)
    yield from ((task, True, rate) for task in ("reverse",) for rate in ADAPTER_RATES)


def warmed(task: str, folder: Path) -> str:
    """Return the folder of the task's warmed-up model."""
    options, steps = TASKS[task]
    start = {**COMMON, "task": options, "model": MODEL, "warmup": {"steps": steps, "batch": 64}, "steps": 0}
    return str(train(parse_config(start), folder=folder / task, console=silent()).folder / "model")


def run(task: str, adapters: bool, rate: float, model: str, folder: Path) -> Settings:
    """Train once, and return what was measured and what was said of it."""
    options, steps = TASKS[task]
    settings = {**COMMON, "task": options, "model": model, "optim": {**COMMON["optim"], "lr": rate}}
    if adapters:
        settings |= {"model": {**MODEL, "lora": {}}, "warmup": {"steps": steps, "batch": 64}}
    outcome = train(parse_config(settings), folder=folder / f"{task}-{adapters}-{rate:g}", console=silent())
    lines = [json.loads(line) for line in (outcome.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    summary = json.loads((outcome.folder / "summary.json").read_text(encoding="utf-8"))
    findings = json.loads((outcome.folder / "health.json").read_text(encoding="utf-8"))
    steps_taken = [line for line in lines if line["phase"] == "train"]
    ratios = sorted(line["update_ratio"] for line in steps_taken if "update_ratio" in line)
    return {
        "task": task,
        "adapters": adapters,
        "lr": rate,
        "before": ends(summary["before"]),
        "after": ends(summary["after"]),
        "verdict": verdict(summary["before"], summary["after"]).kind,
        "ratio": ratios[-1] if ratios else 0.0,
        "median_ratio": ratios[len(ratios) // 2] if ratios else 0.0,
        "kl_old": max(line.get("kl_old", 0.0) for line in steps_taken),
        "plan": foreseen(task, adapters, rate),
        "findings": [found["key"] for found in findings if found["key"] in SAID],
    }


def foreseen(task: str, adapters: bool, rate: float) -> list[str]:
    """Return what the plan says of the rate, for the tiny model."""
    model = {**MODEL, "lora": {}} if adapters else MODEL
    config = {**COMMON, "task": TASKS[task][0], "model": model, "optim": {**COMMON["optim"], "lr": rate}}
    notes = plan(parse_config(config)).notes
    return [word for word in ("stand still", "too fast") if any(word in note for note in notes)]


def silent() -> Console:
    """Return a console that shows nothing."""
    return Console(file=io.StringIO())


def ends(record: Settings) -> list[float]:
    """Return the mean reward of an evaluation and its interval."""
    return [round(record[f"eval/reward{end}"], 4) for end in ("", "_low", "_high")]


def page(records: list[Settings]) -> str:
    """Return docs/findings.md."""
    head = "| task | lr | held-out reward before | after | verdict | largest step | KL of a step | plan | findings |\n"
    table = head + "| --- " * 9 + "|\n"
    parts = [
        table + "".join(row(each) for each in records if each["adapters"] is kind) if records else ""
        for kind in (False, True)
    ]
    return TEXT.format(full=parts[0], adapters=parts[1])


def row(found: Settings) -> str:
    """Return one run's line."""
    intervals = ["{:.3f} [{:.3f}, {:.3f}]".format(*found[side]) for side in ("before", "after")]
    said = [", ".join(f"`{key}`" for key in found["findings"]), ", ".join(found["plan"])]
    cells = [found["task"], f"{found['lr']:g}", *intervals, found["verdict"]]
    cells += [f"{found['ratio']:.1e}", f"{found['kl_old']:.1e}", said[1], said[0]]
    return f"| {' | '.join(cells)} |\n"


TEXT = """<!-- Made from docs/findings.json by scripts/findings.py. -->
# Learning rates, and what findings say of them

What `grouprl plan` and the findings of a run say about the learning rate, held against short runs: three tasks of this
package, a tiny model of two layers, seed 0, 20 steps of 16 prompts with 8 completions and two optimiser steps each, a
constant rate. Rewards are of 192 held-out prompts, two completions each, with 95 % intervals. "Largest step" is the
norm of an optimiser step over that of the weights, "KL of a step" what the updates of a rollout moved (`kl_old`).
Thresholds: `STILL` and `FAST` of `grouprl.config.rates`, `RATIO_FAST` of `grouprl.monitor.moving`.

## Every weight

The runs of a task begin with the same warmed-up model.

{full}
## Adapters on the tiny model

Rank 16 on every linear layer, behind which the weights stay as they were initialised; each run warms up its own.

{adapters}"""


def main(limit: Annotated[int, typer.Option(help="Make so many runs at most.")] = 1000) -> None:
    """Make the runs that are not recorded, and write docs/findings.json and docs/findings.md."""
    records: list[Settings] = json.loads(JSON.read_text(encoding="utf-8")) if JSON.exists() else []
    models: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for task, adapters, rate in trials():
            known = {(each["task"], each["adapters"], each["lr"]) for each in records}
            if (task, adapters, rate) in known or limit == 0:
                continue
            if not adapters and task not in models:
                models[task] = warmed(task, Path(folder))
            records.append(run(task, adapters, rate, models.get(task, "tiny"), Path(folder)))
            limit -= 1
            write_json(JSON, records)
            write_text(PAGE, page(records))
            typer.echo(row(records[-1]), nl=False)
    for each in records:  # thresholds may have been moved since
        each["plan"] = foreseen(each["task"], each["adapters"], each["lr"])
    write_json(JSON, records)
    write_text(PAGE, page(records))


if __name__ == "__main__":
    typer.run(main)
