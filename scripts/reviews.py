"""What do reviews bring? R³L, Search-R2, Retroformer and ECHO beside what they are built on, in small environments.

All runs of an arena begin from one model, warmed up on demonstrations and on reviews made in hindsight. Finished runs
are kept in the output folder and not repeated; docs/reviews.md says what they showed.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import effects
from effects import mean, merged
from effects_report import interval
from finished import finished
from grouprl.storage.run_folder import write_json

COMMON: effects.Settings = {
    "model": {"name": "tiny", "tiny": {"hidden": 64, "layers": 2, "heads": 4, "intermediate": 128}},
    "warmup": {"batch": 24, "lr": 3e-3},
    "batch": {"prompts": 16},
    "optim": {"lr": 1e-3, "warmup_steps": 3},
    "eval": {"final_prompts": 128, "samples": 2, "k": [1]},
    "run": {"checkpoint_every": 10**6, "threads": 1, "rollouts_every": 0},
    "environment": {"workers": 0},
}
QUARTERS = 4
"""Parts of a run over which its metrics are averaged."""


@dataclass(frozen=True)
class Arena:
    """A task, the method whose lessons join its warm-up, and what is compared: (method, group), the rival last."""

    words: str
    settings: effects.Settings
    taught: str
    compared: Sequence[tuple[str | Mapping[str, Any], int]]


REWARD_MODEL = {"name": "retroformer", "imagined": 1, "pilot": 20, "fits": 40, "encoder": "policy"}
ARENAS: dict[str, Arena] = {
    "keys": Arena(
        "Fetch a key in a grid and reach the door in at most six moves, rewarded at the door. R³L has half as many "
        "first attempts as OPMD, its own loss without reviews.",
        {
            "task": {"name": "keys", "size": 3, "walls": 0, "turns": 6, "noise": 0.4},
            "warmup": {"steps": 260},
            "steps": 24,
        },
        "r3l",
        (("r3l", 4), ("opmd", 8), ("echo", 8), ("grpo", 8)),
    ),
    "search": Arena(
        "Answer a question about 40 people with one search and one spare turn, rewarded for the exact answer.",
        {
            "task": {"name": "search", "people": 40, "noise": 0.25},
            "warmup": {"steps": 260},
            "optim": {"lr": 5e-4},
            "steps": 40,
        },
        "search_r2",
        (("search_r2", 8), ({"name": "search_r2", "process": 0.0}, 8), ("grpo", 8)),
    ),
    "lock": Arena(
        "Open a lock in one try, then once more with the review in front; what the lock says too late tells which of "
        "ten digits opens it. Retroformer with its frozen actor, whom advice helps where it is right: with as "
        "many trials as reviews, with a reward model that is believed from step 20 on, and with a quarter of both.",
        {
            "task": {"name": f"{Path(__file__).parent / 'lock.py'}:LockTask"},
            "warmup": {"steps": 120},
            "batch": {"prompts": 32},
            "optim": {"lr": 1e-3},
            "steps": 60,
        },
        "retroformer",
        (("retroformer", 8), (REWARD_MODEL, 8), ("retroformer", 2)),
    ),
}
SERIES = (
    "pass@1",
    "actor_reward",
    "retry_gain",
    "review_model_error",
    "reviews_unread",
    "retries",
    "rows_sampled",
    "observation_likelihood_loss",
)


def clear_unfinished(folder: Path) -> None:
    """Remove what a run that was stopped has left."""
    if folder.is_dir():
        shutil.rmtree(folder)


def name_of(arena: str, method: str | Mapping[str, Any], group: int, seed: int) -> str:
    """Name of a run's folder."""
    plain = method if isinstance(method, str) else "-".join(f"{value}" for value in method.values())
    return f"{arena}-{plain}-g{group}-s{seed}"


def taught(arena: str, out: Path) -> Path:
    """Warm the arena's model up, once; returns its folder."""
    folder, made = out / f"{arena}-warm", ARENAS[arena]
    if not (folder / "summary.json").is_file():
        settings = merged(COMMON, made.settings, {"method": made.taught, "steps": 0})
        clear_unfinished(folder)
        finished(settings, folder)
    return folder / "model"


def measured(arena: str, method: str | Mapping[str, Any], group: int, seed: int, out: Path) -> dict[str, Any]:
    """Run, unless its outcome is there; returns what it showed."""
    folder = out / name_of(arena, method, group, seed)
    if not (folder / "outcome.json").is_file():
        settings = merged(
            COMMON, ARENAS[arena].settings, {"batch": {"group_size": group}, "method": method, "seed": seed}
        )
        settings |= {"model": str(taught(arena, out)), "warmup": {"steps": 0}}
        start = time.perf_counter()
        clear_unfinished(folder)
        finished(settings, folder)
        write_json(folder / "outcome.json", outcome(folder) | {"seconds": time.perf_counter() - start})
    found: dict[str, Any] = json.loads((folder / "outcome.json").read_text(encoding="utf-8"))
    return found


def outcome(folder: Path) -> dict[str, Any]:
    """Evaluations before and after training, and the mean of each metric over each quarter of it."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    evals = [record["eval/pass@1"] for record in records if record["phase"] == "eval"]
    steps = [record for record in records if record["phase"] == "train"]
    size = len(steps) // QUARTERS
    parts = [steps[i * size : (i + 1) * size] for i in range(QUARTERS)]
    series = {name: [mean(r[name] for r in part if name in r) for part in parts] for name in SERIES}
    return {"before": evals[0], "after": evals[-1]} | {n: x for n, x in series.items() if x[-1] == x[-1]}


def rows_of(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Lines of an arena's table, one per method; `found` has the outcomes of each by seed."""
    lines = ["| method | before | after | difference of after to the last row | in training, by quarters |"]
    lines.append("| --- | --- | --- | --- | --- |")
    *_, rival = found.values()
    for name, runs in found.items():
        before, after = (mean(run[key] for run in runs) for key in ("before", "after"))
        low, middle, high = interval([a["after"] - b["after"] for a, b in zip(runs, rival, strict=True)])
        gap = "" if runs is rival else f"{middle:+.3f} [{low:+.3f}, {high:+.3f}]"
        lines.append(f"| {name} | {before:.3f} | {after:.3f} | {gap} | {quarters(runs)} |")
    return lines


def quarters(runs: Sequence[Mapping[str, Any]]) -> str:
    """Say how the metrics of a method went, averaged over its runs."""
    known = [name for name in SERIES if all(name in run for run in runs)]
    means = {name: [mean(run[name][i] for run in runs) for i in range(QUARTERS)] for name in known}
    return "; ".join(f"{name} {' '.join(f'{x:.3g}' for x in values)}" for name, values in means.items())


def main(
    out: Annotated[Path, typer.Option(help="Where runs are kept; finished ones are not repeated.")] = Path(
        "runs/reviews"
    ),
    seeds: Annotated[int, typer.Option(help="Seeds per method.")] = 3,
    only: Annotated[str, typer.Option(help="Only this arena.")] = "",
    budget: Annotated[float, typer.Option(help="Seconds after which no further run is begun; 0: no limit.")] = 0.0,
) -> None:
    """Run every comparison and print the tables of docs/reviews.md."""
    start = time.perf_counter()
    for arena in [only] if only else list(ARENAS):
        found: dict[str, list[dict[str, Any]]] = {}
        for seed in range(seeds):
            for method, group in ARENAS[arena].compared:
                if budget and time.perf_counter() - start > budget:
                    return
                run = measured(arena, method, group, seed, out)
                found.setdefault(name_of(arena, method, group, 0)[len(arena) + 1 : -3], []).append(run)
                print(name_of(arena, method, group, seed), f"{run['before']:.3f} → {run['after']:.3f}", flush=True)
        print(f"## {arena}\n\n{ARENAS[arena].words}\n\n" + "\n".join(rows_of(found)))


if __name__ == "__main__":
    typer.run(main)
