"""Train solvers by imitation of best tours beside one that finds its own, and record their gaps (docs/routing.md).

Run `python scripts/imitation.py runs 0,1 012` (seeds, solvers) for docs/imitation.json, `... page` for the table.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from finished import finished
from grouprl.policy import ArrayPolicy, Build, Pointer, Quotient
from grouprl.policy.vectors.module_policy import MODEL_FILE
from grouprl.protocols import Request
from grouprl.rollout.local.array_sampler import ArraySampler
from grouprl.tasks import load_task
from page_record import fill, keep

DOCS = Path(__file__).parent.parent / "docs"
RECORD, PAGE = DOCS / "imitation.json", DOCS / "routing.md"
SEEDS, INSTANCES = (0, 1, 2), 128
TRAINED, LARGER = 8, 12
"""Cities of the instances of training, and of others that no run has seen."""
CLONED: dict[str, Any] = {"method": "sft", "batch": {"prompts": 64, "group_size": 1}}
FOUND: dict[str, Any] = {
    "method": {"base": "reinforce", "baseline": "group"},
    "batch": {"prompts": 8, "group_size": 8},
}
ARMS: dict[str, dict[str, Any]] = {
    "BQ-NCO: `quotient`, best tours": {"task": "solved", "state": "rest", **CLONED},
    "`pointer`, best tours": {"task": "solved", "state": "whole", **CLONED},
    "POMO: `pointer`, its own tours": {"task": "construct", "state": "whole", **FOUND},
}
KINDS: dict[str, tuple[type[ArrayPolicy], dict[str, int]]] = {
    "rest": (Quotient, {"width": 32, "layers": 3, "heads": 4}),
    "whole": (Pointer, {"width": 32, "layers": 2, "heads": 4}),
}


def settings(arm: str, seed: int, steps: int) -> dict[str, object]:
    """Return the configuration of a run."""
    chosen = ARMS[arm]
    name = "quotient" if chosen["state"] == "rest" else "pointer"
    return {
        "task": {"name": f"{chosen['task']}:tsp", "count": TRAINED, "gap": True, "state": chosen["state"]},
        "model": {"name": name, "settings": KINDS[chosen["state"]][1]},
        "method": chosen["method"],
        "steps": steps,
        "seed": seed,
        "batch": chosen["batch"],
        "optim": {"lr": 3e-3, "schedule": "constant"},
        "eval": {"every": 0, "prompts": 2, "final_prompts": 2},
        "run": {"threads": 1, "rollouts_every": 1000},
    }


def gaps(policy: ArrayPolicy, state: str, count: int) -> np.ndarray:
    """Return the gaps in percent of the likeliest tours of held-out instances, [INSTANCES]."""
    task = load_task({"name": "construct:tsp", "count": count, "gap": True, "state": state})
    sampler, worlds = ArraySampler(policy), [task.environment() for _ in range(INSTANCES)]
    shown = [world.reset(task.example("eval", index), index) for index, world in enumerate(worlds)]
    maps = [each.context for each in shown]
    for _ in range(task.max_turns):
        asked = [
            Request(type(each)(each.values, each.legal, there), 1, seed=0, greedy=True)
            for each, there in zip(shown, maps, strict=True)
        ]
        taken = sampler.sample(asked).actions
        shown = [world.step(actions[0]).observation for world, actions in zip(worlds, taken, strict=True)]
    return np.array([world.score()["#gap_percent"] for world in worlds])


def run(arm: str, seed: int, steps: int, folder: Path) -> dict[str, object]:
    """Train, and return the mean gaps with their 95 % intervals at both sizes."""
    begun = time.process_time()
    if not (folder / "summary.json").exists():
        finished(settings(arm, seed, steps), folder)
    spent = round(time.process_time() - begun)
    state = str(ARMS[arm]["state"])
    kind, sizes = KINDS[state]
    found: dict[str, list[float]] = {}
    for count in (TRAINED, LARGER):
        spaces = load_task({"name": "construct:tsp", "count": count, "state": state}).spaces
        policy = kind(Build(spaces=spaces, seed=seed), **sizes)  # type: ignore[call-arg]
        policy.load_trainable_state(load_file(folder / "model" / MODEL_FILE))
        gap_n = gaps(policy, state, count)
        half = 1.96 * gap_n.std(ddof=1) / INSTANCES**0.5
        found[str(count)] = [round(float(x), 2) for x in (gap_n.mean(), gap_n.mean() - half, gap_n.mean() + half)]
    return {"arm": arm, "seed": seed, "steps": steps, "gap": found, "seconds": spent}


def record(arms: list[str], seeds: list[int], kept: Path, steps: int = 80) -> None:
    """Run what was named, and put it into the record."""
    for seed, arm in itertools.product(seeds, arms):
        row = run(arm, seed, steps, kept / f"{list(ARMS).index(arm)}-{seed}-{steps}")
        keep(RECORD, row, ("arm", "seed"))


def table(rows: list[dict[str, Any]]) -> str:
    """Return the record as a table."""
    lines = [f"| solver | seed | {TRAINED} cities | {LARGER} cities | processor s |", "| --- | --- | --- | --- | --- |"]
    for row in sorted(rows, key=lambda row: (list(ARMS).index(row["arm"]), row["seed"])):
        both = [
            f"{mid:.1f} [{low:.1f}, {high:.1f}]" for mid, low, high in (row["gap"][str(n)] for n in (TRAINED, LARGER))
        ]
        lines.append(f"| {row['arm']} | {row['seed']} | {both[0]} | {both[1]} | {row['seconds']} |")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    where = Path(tempfile.gettempdir()) / "imitation_runs"
    if sys.argv[1] == "runs":
        named = [arm for number, arm in enumerate(ARMS) if str(number) in sys.argv[3]]
        record(named, [int(word) for word in sys.argv[2].split(",")], where)
    else:
        fill(PAGE, {"imitation": table(json.loads(RECORD.read_text(encoding="utf-8")))})
