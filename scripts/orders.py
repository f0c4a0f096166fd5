"""Train planners that order sub-tasks before a frozen solver, and record them beside random and fixed orders.

Run `python scripts/orders.py runs 0,1,2` (seeds) for docs/orders.json, `... page` for docs/teams.md.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import permutations
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from finished import finished
from grouprl.envs.builtin.sub_tasks import Homes, PlannedSubTasks
from grouprl.records.examples import Example
from page_record import fill, keep, tuned

DOCS = Path(__file__).parent.parent / "docs"
RECORD, PAGE = DOCS / "orders.json", DOCS / "teams.md"
RATES, TUNED_ON, COUNT, STEPS, INPUTS = (1e-3, 3e-3, 1e-2), 9, 5, 80, 512
ANY = Example("any", {})


def settings(seed: int, lr: float) -> dict[str, Any]:
    """Return the configuration of a run."""
    return {
        "task": {"name": "env:grouprl.envs.builtin.sub_tasks:Homes", "turns": COUNT},
        "model": {"name": "choice_values", "settings": {"hidden": [64]}},
        "method": "rlap",
        "seed": seed,
        "steps": STEPS,
        "batch": {"prompts": 64, "group_size": 1, "epochs": 4, "minibatches": 2},
        "optim": {"lr": lr, "schedule": "constant"},
        "eval": {"every": 0, "prompts": INPUTS, "final_prompts": INPUTS},
        "run": {"threads": 1, "rollouts_every": 1000},
    }


def run(seed: int, lr: float, folder: Path) -> dict[str, Any]:
    """Train, and return what the likeliest order earns on held-out inputs."""
    begun = time.process_time()
    if not (folder / "summary.json").exists():
        finished(settings(seed, lr), folder)
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["phase"] == "eval"]
    found = {"earned": rows[-1]["eval/greedy_reward"], "right": rows[-1]["eval/greedy"]}
    return {**{k: round(v, 3) for k, v in found.items()}, "seconds": round(time.process_time() - begun)}


def played(seed: int, order: Sequence[int]) -> tuple[float, float]:
    """Return what an order earns on one input, and whether all results are right."""
    world: PlannedSubTasks = Homes(COUNT)
    world.reset(ANY, seed)
    return sum(world.step(action).reward for action in order), world.score()["correct"]


def mean(order_of: Callable[[int], Sequence[int]], first: int) -> dict[str, float]:
    """Return the mean over the inputs from number `first` on, of what the order of each earns."""
    found = np.mean([played(seed, order_of(seed)) for seed in range(first, first + INPUTS)], axis=0)
    return {"earned": round(float(found[0]), 3), "right": round(float(found[1]), 3)}


def rivals() -> None:
    """Record random orders, and the fixed order that is best on other inputs."""
    every = list(permutations(range(COUNT)))
    best = max(every, key=lambda order: mean(lambda _: order, 0)["earned"])
    arms: dict[str, Callable[[int], Sequence[int]]] = {
        "random": lambda seed: np.random.default_rng(seed).permutation(COUNT).tolist(),
        "fixed": lambda _: best,
    }
    for arm, order_of in arms.items():
        row = {"arm": arm, "seed": 0, **mean(order_of, 10_000)}
        keep(RECORD, row | ({"order": list(best)} if arm == "fixed" else {}), ("arm", "seed"))


def record(seeds: list[int], kept: Path) -> None:
    """Tune the rate on a seed of its own, run it on `seeds`, and put what is measured into the record."""
    rivals()

    def measured(seed: int, lr: float) -> dict[str, Any]:
        return run(seed, lr, kept / f"{seed}-{lr}")

    tuned(RECORD, "rlap", measured, itemgetter("earned"), RATES, TUNED_ON, seeds)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the record as a table."""
    names = {"random": "random", "fixed": "the best fixed one: that of the text", "rlap": "`rlap`"}
    lines = ["| order | seed | rate | earned | all right | processor s |", "| --- " * 6 + "|"]
    for row in sorted(rows, key=lambda row: (list(names).index(row["arm"]), row["seed"])):
        own = (str(row["seed"]), f"{row['lr']:g}", str(row["seconds"])) if "lr" in row else ("–", "–", "–")
        lines.append(
            f"| {names[row['arm']]} | {own[0]} | {own[1]} | {row['earned']:.3f} | {row['right']:.3f} | {own[2]} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "runs":
        record([int(word) for word in sys.argv[2].split(",")], Path(tempfile.gettempdir()) / "order_runs")
    else:
        fill(PAGE, {"orders": table(json.loads(RECORD.read_text(encoding="utf-8")))})
