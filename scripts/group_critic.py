"""Hold group baselines against a critic, and a policy that remembers against one that does not, each at its own rate.

Run `python scripts/group_critic.py runs [ARENA …]` for docs/group_critic.json, `… page` for the tables of
docs/control.md. Every arm of an arena plays the same number of episodes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from control import PAGE, QUIET, TUNING, last_quarter
from grouprl.config.run import parse_config
from grouprl.training.loop import train
from page_record import fill, keep

RECORD = Path(__file__).parent.parent / "docs" / "group_critic.json"
WALK = "env:grouprl.envs.construction.coverage:CoverageWalk"
CORRIDOR = "env:grouprl.envs.construction.corridor:Corridor"
ALONE = {"batch": {"prompts": 16, "group_size": 1}}
"""A critic needs no group: each of its episodes has a beginning of its own."""
CRITIC = {"method": {"name": "ppo_control", "gamma": 0.99, "lam": 0.95, "size": 64}, **ALONE}
ARMS: dict[str, dict[str, Any]] = {
    "ppo_control": CRITIC,
    "grpo": {"method": "grpo"},
    "dr_grpo": {"method": "dr_grpo"},
    "rloo": {"method": "rloo", "batch": {"epochs": 1}},
}
SMALL = {"model": {"name": "mlp", "settings": {"hidden": [16]}}}
REMEMBERS = {"name": "recurrent", "settings": {"width": 16}}
ARENAS: dict[str, dict[str, Any]] = {
    "coverage": {
        "task": {"name": WALK, "turns": 15, "config": {"side": [4, 4], "start": [1, 1], "steps": 15}},
        **SMALL,
        "steps": 30,
        "batch": {"epochs": 2},
        "arms": ARMS,
        "rates": (1e-2, 3e-2),
        "seeds": range(5),
    },
    "memory": {
        "task": {"name": CORRIDOR, "turns": 5, "config": {"length": 3}},
        "method": "grpo",
        "steps": 120,
        "batch": {"epochs": 1},
        "arms": {
            "mlp": SMALL,
            "recurrent": {"model": REMEMBERS},
        },
        "rates": (3e-2,),
        "seeds": range(3),
    },
}


def settings(arena: str, arm: str, lr: float, seed: int) -> dict[str, Any]:
    """Return the configuration of a run."""
    place = {key: value for key, value in ARENAS[arena].items() if key not in ("arms", "rates", "seeds")}
    own = ARENAS[arena]["arms"][arm]
    batch = {"prompts": 2, "group_size": 8, "minibatches": 1, **place["batch"], **own.get("batch", {})}
    optim = {"lr": lr, "schedule": "constant", "grad_clip": 0.5}
    run = {"threads": 1, "rollouts_every": 1000}
    return {**place, **own, "batch": batch, "optim": optim, "seed": seed, "eval": QUIET, "run": run}


def score(arena: str, arm: str, lr: float, seed: int) -> float:
    """Return what the policy was paid per episode in the last quarter of a run."""
    with tempfile.TemporaryDirectory() as kept:
        config = parse_config(settings(arena, arm, lr, seed))
        train(config, folder=Path(kept) / "run", console=Console(quiet=True))
        return last_quarter(Path(kept) / "run", "reward_mean")


def record(names: list[str]) -> None:
    """Tune every arm of the arenas, run it on all seeds, and put it into the record."""
    for arena in names:
        for arm in ARENAS[arena]["arms"]:
            rates = ARENAS[arena]["rates"]
            tried = {str(lr): score(arena, arm, lr, TUNING) for lr in rates if len(rates) > 1}
            best = max(rates, key=lambda lr: tried.get(str(lr), 0.0))
            paid = [score(arena, arm, best, seed) for seed in ARENAS[arena]["seeds"]]
            row = {"arena": arena, "arm": arm, "tried": tried, "lr": best, "paid": paid}
            keep(RECORD, row, ("arena", "arm"))


def table(rows: list[dict[str, Any]], arena: str) -> str:
    """Return the record of an arena as a table."""
    lines = ["| | rate | mean | each seed |", "| --- | --- | --- | --- |"]
    known = {row["arm"]: row for row in rows if row["arena"] == arena}
    for arm in (known[arm] for arm in ARENAS[arena]["arms"] if arm in known):
        paid = ", ".join(f"{x:.2f}" for x in arm["paid"])
        lines.append(f"| `{arm['arm']}` | {arm['lr']:g} | {np.mean(arm['paid']):.2f} | {paid} |")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "runs":
        record(sys.argv[2:] or list(ARENAS))
    else:
        rows = json.loads(RECORD.read_text())
        fill(PAGE, {arena: table(rows, arena) for arena in ARENAS})
