"""Does a method show the effect that its paper claims, on a toy task where its idea can matter?

Every claim (`claims.py`) names an arena, a measure and a rival. Method and rival run in the arena with the same seeds
and the same warmed-up model; the record says by how much they differ, with a 95 % interval over seeds, and whether that
is the effect claimed, also when it is not. Finished runs are kept in the output folder and not repeated.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import effects_report
from claims import CLAIMS, NOT_RUN, Claim
from grouprl.config.run import parse_config
from grouprl.core.errors import GrouprlError
from grouprl.core.hashing import digest
from grouprl.methods import methods
from grouprl.methods.compose import compose
from grouprl.storage.run_folder import write_json
from grouprl.training.loop import train
from learn import Settings, _clear_unfinished, merged

LAST = 10
"""Steps at the end of a run over which measures of training are averaged."""
COMMON: Settings = {
    "batch": {"prompts": 16, "group_size": 16, "minibatches": 2},
    "data": {"prompts": 400},
    "model": {"name": "tiny", "tiny": {"layers": 2}},
    "optim": {"lr": 1e-3, "warmup_steps": 5},
    "eval": {"every": 0, "final_prompts": 256, "samples": 8, "k": [1, 8]},
    "run": {"checkpoint_every": 10**6, "threads": 1},
}


@dataclass(frozen=True)
class Arena:
    """A task and a budget in which one kind of idea can matter."""

    words: str
    settings: Settings
    taught: Settings = field(default_factory=dict)
    """What is different in the warm-up."""


ARENAS: dict[str, Arena] = {
    "plain": Arena(
        "six letters backwards, half right after the warm-up: who learns more from 50 rollouts",
        {"task": {"name": "reverse", "length": 6, "noise": 0.15}, "warmup": {"steps": 400}, "steps": 50},
    ),
    "many completions": Arena(
        "take a number apart, with up to 39 correct completions: entropy and the number of different correct "
        "completions collapse",
        {"task": {"name": "summands", "largest": 40, "noise": 0.4}, "warmup": {"steps": 1500}, "steps": 80},
    ),
    "verbose": Arena(
        "five letters backwards behind up to 12 dots of thinking, which help: correct completions grow longer "
        "than they need",
        {
            "task": {"name": "ponder", "length": 5, "dots": 12, "noise": 0.2, "budgeted": 0.0},
            "warmup": {"steps": 400},
            "steps": 60,
        },
    ),
    "variants": Arena(
        "sort six digits, which may stand in either order: the same prompt in two forms",
        {"task": {"name": "sorting", "length": 6, "noise": 0.3}, "warmup": {"steps": 400}, "steps": 50},
    ),
    "budgets": Arena(
        "four letters backwards behind up to 8 dots, by a model that knows how to keep a budget of dots",
        {
            "task": {"name": "ponder", "length": 4, "dots": 8, "budgeted": 0.0},
            "warmup": {"steps": 600},
            "steps": 50,
        },
        {"task": {"budgeted": 0.5}},
    ),
    "beyond reach": Arena(
        "eight letters backwards by a model that mostly finished what a hint began: without one, groups are all wrong",
        {
            "task": {"name": "reverse", "length": 8, "noise": 0.2},
            "warmup": {"steps": 260},
            "steps": 60,
            "optim": {"lr": 5e-4},
        },
        {"task": {"hinted": 0.994}},
    ),
    "mixed difficulty": Arena(
        "400 prompts of two to ten letters: many far too easy, some too hard, so many groups are dead",
        {
            "task": {"name": "reverse", "length": 10, "shortest": 2, "noise": 0.2},
            "warmup": {"steps": 400},
            "steps": 80,
            "optim": {"lr": 5e-4},
        },
    ),
    "stale": Arena(
        "six letters backwards with sixteen updates per rollout: the data soon are far off-policy",
        {
            "task": {"name": "reverse", "length": 6, "noise": 0.15},
            "warmup": {"steps": 400},
            "steps": 25,
            "batch": {"minibatches": 4, "epochs": 4},
            "optim": {"lr": 1e-3},
        },
    ),
}


@dataclass(frozen=True)
class Run:
    """One training run: a method (its composition) in an arena with a seed."""

    arena: str
    method: str | Mapping[str, Any]
    seed: int
    changes: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        plain = self.method if isinstance(self.method, str) else _flat(self.method)
        changed = f"-{digest(self.changes)[:6]}" if self.changes else ""
        return f"{self.arena.replace(' ', '_')}-{plain.replace('@', '-at-')}{changed}-s{self.seed}"


def _flat(method: Mapping[str, Any]) -> str:
    words = "-".join([str(method["name"]), *(f"{k}_{v}" for k, v in method.items() if k != "name")])
    return re.sub(r"[^\w.@-]", "_", words)


def runs_of(claims: Iterable[Claim], seeds: int) -> list[Run]:
    """Every run that the claims need, each once."""
    wanted = [run for claim in claims for side in sides(claim, seeds) for run in side]
    return list({run.name: run for run in wanted}.values())


def sides(claim: Claim, seeds: int) -> tuple[list[Run], list[Run]]:
    """The runs of a claim's method and of its rival; without a rival both are the method's."""
    pair = (claim.method, claim.rival or claim.method)
    ours, theirs = ([Run(claim.arena, m, s, claim.changes) for s in range(seeds)] for m in pair)
    return ours, theirs


def warm_start(arena: str, out: Path) -> Path:
    """Imitate the arena's demonstrations once; returns the folder of the model."""
    folder = out / f"{arena.replace(' ', '_')}-warm"
    if not (folder / "summary.json").is_file():
        data = {"data": {"prompts": None}}
        settings = merged(COMMON, ARENAS[arena].settings, ARENAS[arena].taught, {"method": "sft", "steps": 0}, data)
        _clear_unfinished(folder)
        if train(parse_config(settings), folder=folder, console=Console(quiet=True)).interrupted:
            raise KeyboardInterrupt
    return folder / "model"


def config_of(run: Run, model: Path) -> Settings:
    """The run's configuration as plain data."""
    arena = ARENAS[run.arena].settings
    fixed = {"model": str(model), "method": run.method, "seed": run.seed, "warmup": {"steps": 0}}
    once = {"batch": {"minibatches": 1, "epochs": 1}} if compose(run.method).method.on_policy else {}
    settings = merged(COMMON, arena, fixed, {"run": {"rollouts_every": arena["steps"]}}, once, run.changes or {})
    return {**settings, "model": str(model)}


def measure(run: Run, out: Path) -> dict[str, float] | str:
    """Run, unless its outcome is there, and return its measures; a refusal or a broken run as a sentence."""
    os.environ["OMP_NUM_THREADS"] = "1"
    path = out / run.name / "outcome.json"
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    start = time.perf_counter()
    _clear_unfinished(path.parent)
    try:
        config = parse_config(config_of(run, out / f"{run.arena.replace(' ', '_')}-warm" / "model"))
        if train(config, folder=path.parent, console=Console(quiet=True)).interrupted:
            raise KeyboardInterrupt
    except GrouprlError as error:
        return str(error)
    found = {**measures(path.parent), "seconds": round(time.perf_counter() - start, 1)}
    write_json(path, found)
    return found


def measures(folder: Path) -> dict[str, float]:
    """What a finished run shows: evaluations, and means of the last steps of training."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [r for r in map(json.loads, lines) if r["phase"] == "train"]
    names = (
        *("entropy", "length_mean", "groups_zero_variance", "rows_trained", "pass@1", "truncated_fraction", "kl_old"),
        "turns_mean",
    )
    found = {f"train/{n}": mean(r[n] for r in records[-LAST:] if n in r) for n in names}
    whole = {
        f"whole/{n}": mean(r[n] for r in records if n in r) for n in ("groups_zero_variance", "rows_trained", "pass@1")
    }
    spent = {"whole/tokens": float(sum(r.get("tokens", 0) for r in records))}
    before = {name.replace("eval", "before"): x for name, x in summary["before"].items()}
    values = {**before, **summary["after"], **found, **whole, **spent, **diversity(folder)}
    return {name: x for name, x in values.items() if isinstance(x, float | int) and math.isfinite(x)}


def diversity(folder: Path) -> dict[str, float]:
    """Different correct completions per group among those sampled in the last step, and the mean length of correct
    completions."""
    import pyarrow.parquet as pq

    files = sorted((folder / "rollouts").glob("*.parquet"))
    rows = pq.read_table(files[-1]).to_pylist()
    right: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        right.setdefault(row["group"], []).extend([row] if row["correct"] else [])
    lengths = [len(row["completion_ids"]) for group in right.values() for row in group]
    return {
        "distinct_right": mean(len({row["completion"] for row in group}) for group in right.values()),
        "length_right": mean(lengths),
    }


def mean(values: Iterable[float]) -> float:
    """The mean; nan of nothing."""
    listed = list(values)
    return statistics.fmean(listed) if listed else math.nan


def run_all(runs: Sequence[Run], out: Path, jobs: int, console: Console) -> dict[str, dict[str, float] | str]:
    """Measure every run, `jobs` at a time; returns the measures by name of the run."""
    found: dict[str, dict[str, float] | str] = {}
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        for arena in dict.fromkeys(run.arena for run in runs):
            pool.submit(warm_start, arena, out).result()
        futures = {run.name: pool.submit(measure, run, out) for run in runs}
        for name, future in futures.items():
            found[name] = future.result()
            console.print(effects_report.line(name, found[name]), soft_wrap=True)
    return found


def main(
    out: Annotated[Path, typer.Option(help="Where runs are kept; finished ones are not repeated.")] = Path(
        "runs/effects"
    ),
    docs: Annotated[Path, typer.Option(help="Where effects.md and effects.json are written.")] = Path("docs"),
    seeds: Annotated[int, typer.Option(help="Seeds per method.")] = 3,
    jobs: Annotated[int, typer.Option(help="Runs at a time, one thread each.")] = 2,
    only: Annotated[str, typer.Option(help="Only claims whose method or arena contains this; docs stay.")] = "",
) -> None:
    """Run every claim of the catalogue and write the record."""
    missing = [n for n, e in methods().items() if not e.dialect_of and n not in {*NOT_RUN, *(c.name for c in CLAIMS)}]
    if missing:
        print(f"without a claim in scripts/claims.py: {', '.join(missing)}")
    claims = [c for c in CLAIMS if only in f"{c.name} {c.arena}"]
    found = run_all(runs_of(claims, seeds), out, jobs, Console())
    pairs = [[[found[run.name] for run in side] for side in sides(claim, seeds)] for claim in claims]
    rows = [effects_report.compute_advantages(claim, *pair) for claim, pair in zip(claims, pairs, strict=True)]
    if only:
        for row in rows:
            print(effects_report.sentence(row))
    else:
        effects_report.write(rows, {name: arena.words for name, arena in ARENAS.items()}, docs)


if __name__ == "__main__":
    typer.run(main)
