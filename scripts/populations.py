"""Train populations of strategies beside a single one, and record the best of four tours each (docs/routing.md).

Run `python scripts/populations.py runs [METHOD …] [SEED …]` for docs/populations.json, `… page` for the table.
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
from grouprl.policy import Build, Pointer
from grouprl.policy.vectors.module_policy import MODEL_FILE
from grouprl.protocols import Request
from grouprl.rollout.local.array_sampler import ArraySampler
from grouprl.tasks import load_task

DOCS = Path(__file__).parent.parent / "docs"
RECORD, PAGE = DOCS / "populations.json", DOCS / "routing.md"
TOURS = 4
"""Tours of an instance of which the best counts, and strategies of a population."""
SEEDS = (0, 1, 2)
INSTANCES = 128
POLICY = {"width": 32, "layers": 1, "heads": 4}
METHODS: dict[str, dict[str, Any]] = {
    "POMO": {"base": "reinforce", "baseline": "group"},
    "poppy": {"name": "poppy", "strategies": TOURS},
    "compass": {"name": "compass", "strategies": TOURS},
}


def task_of(name: str) -> dict[str, Any]:
    """Return the task of a method: what its policy is told of its strategy."""
    told = {"POMO": {}, "poppy": {"strategies": TOURS}, "compass": {"strategies": TOURS, "latent": 4}}[name]
    return {"name": "construct:tsp", "count": 8, "gap": True, **told}


def settings(name: str, seed: int, steps: int) -> dict[str, object]:
    """Return the configuration of a run."""
    return {
        "task": task_of(name),
        "model": {"name": "pointer", "settings": POLICY},
        "method": METHODS[name],
        "steps": steps,
        "seed": seed,
        "batch": {"prompts": 16, "group_size": 16},
        "optim": {"lr": 2e-3, "schedule": "constant"},
        "eval": {"every": 0, "prompts": 2, "final_prompts": 2},
        "run": {"threads": 1, "rollouts_every": 1000},
    }


def gaps(name: str, policy: Pointer) -> np.ndarray:
    """Return the gaps in percent of four sampled tours of each held-out instance, [INSTANCES, TOURS]."""
    task, sampler = load_task(task_of(name)), ArraySampler(policy)
    examples = [task.example("eval", index) for index in range(INSTANCES)]
    told = [(task.variants(e) if name != "POMO" else (e,) * TOURS) for e in examples]
    worlds = [task.environment() for _ in range(INSTANCES * TOURS)]
    shown = [
        world.reset(e, number) for number, (world, e) in enumerate(zip(worlds, itertools.chain(*told), strict=True))
    ]
    maps = [each.context for each in shown]
    for turn in range(task.max_turns):
        asked = [
            Request(type(each)(each.values, each.legal, there), 1, seed=1000 * number + turn)
            for number, (each, there) in enumerate(zip(shown, maps, strict=True))
        ]
        taken = sampler.sample(asked).actions
        shown = [world.step(actions[0]).observation for world, actions in zip(worlds, taken, strict=True)]
    return np.array([world.score()["#gap_percent"] for world in worlds]).reshape(INSTANCES, TOURS)


def run(name: str, seed: int, steps: int, folder: Path) -> dict[str, object]:
    """Train; return the mean gap of a tour before and after, and of the best of four with its 95 % interval."""
    begun = time.process_time()
    if not (folder / "summary.json").exists():
        finished(settings(name, seed, steps), folder)
    task = load_task(task_of(name))
    policy = Pointer(Build(spaces=task.spaces, task=task, seed=seed), **POLICY)
    began = round(float(gaps(name, policy).mean()), 2)
    policy.load_trainable_state(load_file(folder / "model" / MODEL_FILE))
    found_nk = gaps(name, policy)
    best_n = found_nk.min(1)
    half = 1.96 * best_n.std(ddof=1) / INSTANCES**0.5
    ends = [round(float(x), 2) for x in (best_n.mean(), best_n.mean() - half, best_n.mean() + half)]
    one = round(float(found_nk.mean()), 2)
    seconds = round(time.process_time() - begun)
    gap = {"began": began, "one": one, "best": ends}
    return {"method": name, "seed": seed, "steps": steps, **gap, "seconds": seconds}


def record(names: list[str], seeds: list[int], kept: Path, steps: int = 80) -> None:
    """Run what was named, and put it into the record."""
    for seed, name in itertools.product(seeds, names):
        row = run(name, seed, steps, kept / f"{name}-{seed}-{steps}")
        rows = json.loads(RECORD.read_text()) if RECORD.exists() else []
        rows = [r for r in rows if (r["method"], r["seed"]) != (name, seed)]
        RECORD.write_text(json.dumps([*rows, row], indent=1) + "\n")
        print(json.dumps(row), flush=True)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the record as a table."""
    lines = ["| method | seed | one tour | best of four | processor s |", "| --- | --- | --- | --- | --- |"]
    for row in sorted(rows, key=lambda row: (list(METHODS).index(row["method"]), row["seed"])):
        mid, low, high = row["best"]
        named = "POMO, a single strategy" if row["method"] == "POMO" else f"`{row['method']}`"
        line = f"| {named} | {row['seed']} | {row['one']:.1f} | {mid:.1f} [{low:.1f}, {high:.1f}] | {row['seconds']} |"
        lines.append(line)
    return "\n".join(lines)


def page() -> None:
    """Write the record into the page."""
    head, rest = PAGE.read_text(encoding="utf-8").split("<!-- populations -->")
    end = "<!-- end of the populations -->"
    rows = table(json.loads(RECORD.read_text()))
    PAGE.write_text(f"{head}<!-- populations -->\n{rows}\n{end}{rest.split(end)[1]}", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    where = Path(tempfile.gettempdir()) / "population_runs"
    if sys.argv[1] == "runs":
        named = [word for word in sys.argv[2:] if word in METHODS]
        record(named or list(METHODS), [int(word) for word in sys.argv[2:] if word.isdigit()] or list(SEEDS), where)
    else:
        page()
