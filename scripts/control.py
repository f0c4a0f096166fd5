"""Run methods for control beside an obvious rival, each at the best of its rates, and record what they were paid.

Run `python scripts/control.py runs [ARENA …]` for docs/control.json, `… page` for the tables of docs/control.md.
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
from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.training.loop import train

DOCS = Path(__file__).parent.parent / "docs"
RECORD, PAGE = DOCS / "control.json", DOCS / "control.md"
TUNING, SEEDS = 10, (0, 1, 2)
"""The seed on which rates are compared, and those of the table."""
QUIET = {"every": 0, "prompts": 2, "final_prompts": 2}
GRID = "env:grouprl.envs.construction.coverage:CoverageWalk"
CARTPOLE = {"base": "ppo_control", "gamma": 0.98, "lam": 0.8, "size": 256}
PENALTY = {"base": "fixpo", "gamma": 0.98, "lam": 0.8, "size": 256, "entropy_coef": 0.0}
ARENAS: dict[str, dict[str, Any]] = {
    "region": {
        "task": {"name": "control:CartPole-v1", "horizon": 32},
        "model": {"name": "mlp", "settings": {"hidden": [32, 32]}},
        "batch": {"prompts": 8, "group_size": 1, "epochs": 8},
        "optim": {"schedule": "constant", "grad_clip": 0.5},
        "steps": 30,
        "measure": "reward/return",
        "methods": {"ppo_control": (CARTPOLE, (1e-3, 3e-3)), "fixpo": (PENALTY, (1e-3, 3e-3))},
    },
    "gains": {
        "task": {"name": GRID, "turns": 15, "config": {"side": [4, 4], "start": [1, 1], "steps": 15}},
        "model": {"name": "mlp", "settings": {"hidden": [32]}},
        "batch": {"prompts": 1, "group_size": 16, "minibatches": 1},
        "optim": {"schedule": "constant"},
        "steps": 80,
        "measure": "reward_mean",
        "methods": {
            "reinforce": ({"base": "reinforce", "baseline": "group"}, (1e-2, 3e-2)),
            "subpo": ({"name": "subpo"}, (1e-2, 3e-2)),
        },
    },
    "transport": {
        "task": {"name": GRID, "turns": 10},
        "model": {"name": "mlp", "settings": {"hidden": [8]}},
        "batch": {"prompts": 1, "group_size": 4, "minibatches": 1},
        "optim": {"schedule": "constant", "grad_clip": 0},
        "steps": 80,
        "measure": "reward_mean",
        "methods": {
            "reinforce": ({"base": "reinforce", "baseline": "group"}, (1e-2, 3e-2)),
            "power 0": ({"base": "n_pg_igt", "baseline": "group", "power": 0.0}, (0.3, 1.0)),
            "n_pg_igt": ({"base": "n_pg_igt", "baseline": "group"}, (0.3, 1.0)),
        },
    },
}


def settings(arena: str, label: str, lr: float, seed: int) -> dict[str, Any]:
    """Return the configuration of a run."""
    place = {key: value for key, value in ARENAS[arena].items() if key not in ("methods", "measure")}
    method = place | {"method": ARENAS[arena]["methods"][label][0], "optim": {**place["optim"], "lr": lr}}
    return method | {"seed": seed, "warmup": {"steps": 0}, "eval": QUIET, "run": {"threads": 1, "rollouts_every": 1000}}


def score(arena: str, label: str, lr: float, seed: int) -> float:
    """Return what the policy was paid per episode in the last quarter of a run."""
    with tempfile.TemporaryDirectory() as kept:
        train(parse_config(settings(arena, label, lr, seed)), folder=Path(kept) / "run", console=Console(quiet=True))
        lines = (Path(kept) / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if row["phase"] == "train"]
    found = [row.get(ARENAS[arena]["measure"]) for row in steps[3 * len(steps) // 4 :]]
    return round(float(np.mean([x for x in found if x is not None])), 3)


def record(names: list[str]) -> None:
    """Tune every method of the arenas, run it on all seeds, and put it into the record."""
    for arena in names:
        for label, (_, rates) in ARENAS[arena]["methods"].items():
            begun = time.process_time()
            tried = {str(lr): score(arena, label, lr, TUNING) for lr in rates}
            best = max(rates, key=lambda lr: tried[str(lr)])
            paid = [score(arena, label, best, seed) for seed in SEEDS]
            row = {"arena": arena, "method": label, "tried": tried, "lr": best, "paid": paid}
            row["seconds"] = round((time.process_time() - begun) / (len(rates) + len(SEEDS)))
            rows = json.loads(RECORD.read_text()) if RECORD.exists() else []
            rows = [r for r in rows if (r["arena"], r["method"]) != (arena, label)]
            RECORD.write_text("[\n" + ",\n".join(json.dumps(each) for each in [*rows, row]) + "\n]\n")
            print(json.dumps(row), flush=True)


def table(rows: list[dict[str, Any]], arena: str) -> str:
    """Return the record of an arena as a table."""
    lines = ["| method | rate | seeds 0 to 2 | mean | processor s |", "| --- | --- | --- | --- | --- |"]
    order = list(ARENAS[arena]["methods"])
    for row in sorted((r for r in rows if r["arena"] == arena), key=lambda r: order.index(r["method"])):
        paid = ", ".join(f"{x:.2f}" for x in row["paid"])
        named = f"`{row['method']}`" if " " not in row["method"] else f"`{order[-1]}`, {row['method']}"
        lines.append(f"| {named} | {row['lr']:g} | {paid} | {np.mean(row['paid']):.2f} | {row['seconds']} |")
    return "\n".join(lines)


def page() -> None:
    """Write the record into the page."""
    text, rows = PAGE.read_text(encoding="utf-8"), json.loads(RECORD.read_text())
    for arena in ARENAS:
        head, rest = text.split(f"<!-- {arena} -->")
        end = f"<!-- end of {arena} -->"
        text = f"{head}<!-- {arena} -->\n{table(rows, arena)}\n{end}{rest.split(end)[1]}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "runs":
        record(sys.argv[2:] or list(ARENAS))
    else:
        page()
