"""Train policies that send entities to tasks, with and without preselection, and record their gaps.

Run `python scripts/allocations.py runs 0,1,2` (seeds) for docs/allocations.json, `... page` for docs/routing.md.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from finished import finished
from grouprl.envs.construction import TaskAllocation
from grouprl.tasks import load_task
from page_record import fill, tuned
from routing import RULES, played

DOCS = Path(__file__).parent.parent / "docs"
RECORD, PAGE = DOCS / "allocations.json", DOCS / "routing.md"
TUNED_ON, STEPS, RATES, INSTANCES = 9, 40, (1e-3, 3e-3), 128
SIZES = {"width": 32, "layers": 1}
ARMS: dict[str, dict[str, Any]] = {
    "preselect": {"name": "preselect", "settings": {**SIZES, "keep": 2}},
    "pointer": {"name": "pointer", "settings": SIZES},
}


def settings(arm: str, seed: int, lr: float) -> dict[str, Any]:
    """Return the configuration of a run."""
    return {
        "task": {"name": "construct:allocation", "count": 7, "gap": True},
        "model": ARMS[arm],
        "method": {"base": "reinforce", "baseline": "group"},
        "steps": STEPS,
        "seed": seed,
        "batch": {"prompts": 16, "group_size": 8},
        "optim": {"lr": lr, "schedule": "constant"},
        "eval": {"every": 0, "prompts": INSTANCES, "final_prompts": INSTANCES},
        "run": {"threads": 1, "rollouts_every": 1000},
    }


def run(arm: str, seed: int, lr: float, folder: Path) -> dict[str, Any]:
    """Train, and return the mean gap in percent of sampled allocations before and after."""
    begun = time.process_time()
    if not (folder / "summary.json").exists():
        finished(settings(arm, seed, lr), folder)
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["phase"] == "eval"]
    ends = [round(rows[-1][f"eval/reward/#gap_percent{word}"], 1) for word in ("", "_low", "_high")]
    spent = round(time.process_time() - begun)
    return {"before": round(rows[0]["eval/reward/#gap_percent"], 1), "gap": ends, "seconds": spent}


def greedy_gap() -> float:
    """Return the mean gap of the rule on held-out instances: each entity goes where it adds the most worth."""
    task, problem = load_task({"name": "construct:allocation", "count": 7, "gap": True}), TaskAllocation(7)
    gaps = []
    for index in range(INSTANCES):
        instance = task.instance(task.example("eval", index))  # type: ignore[attr-defined]
        gaps.append(problem.gap(instance, played(problem, instance, RULES["allocation"][1]).cost()))
    return round(float(np.mean(gaps)), 1)  # type: ignore[arg-type]


def record(seeds: list[int], kept: Path) -> None:
    """Tune the rate of each arm on a seed of its own, run it on `seeds`, and put what is measured into the record."""
    rule = greedy_gap()
    for arm in ARMS:

        def measured(seed: int, lr: float, arm: str = arm) -> dict[str, Any]:
            return {"rule": rule, **run(arm, seed, lr, kept / f"{arm}-{seed}-{lr}")}

        tuned(RECORD, arm, measured, lambda row: row["gap"][0], RATES, TUNED_ON, seeds, min)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the record as a table."""
    lines = ["| policy | seed | rate | before | after | rule | processor s |", "| --- " * 7 + "|"]
    for row in sorted(rows, key=lambda row: (list(ARMS).index(row["arm"]), row["seed"])):
        mid, low, high = row["gap"]
        lines.append(
            f"| `{row['arm']}` | {row['seed']} | {row['lr']:g} | {row['before']:.1f} | "
            f"{mid:.1f} [{low:.1f}, {high:.1f}] | {row['rule']:.1f} | {row['seconds']} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "runs":
        record([int(word) for word in sys.argv[2].split(",")], Path(tempfile.gettempdir()) / "allocation_runs")
    else:
        fill(PAGE, {"allocations": table(json.loads(RECORD.read_text(encoding="utf-8")))})
