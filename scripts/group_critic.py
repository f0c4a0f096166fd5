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

from grouprl.config.run import parse_config
from grouprl.training.loop import train

DOCS = Path(__file__).parent.parent / "docs"
RECORD, PAGE = DOCS / "group_critic.json", DOCS / "control.md"
TUNING = 10
"""The seed on which rates are compared; it is none of the table's."""
QUIET = {"every": 0, "prompts": 1, "final_prompts": 1}
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
        lines = (Path(kept) / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if row["phase"] == "train"]
    return round(float(np.mean([row["reward_mean"] for row in steps[3 * len(steps) // 4 :]])), 3)


def record(names: list[str]) -> None:
    """Tune every arm of the arenas, run it on all seeds, and put it into the record."""
    for arena in names:
        for arm in ARENAS[arena]["arms"]:
            rates = ARENAS[arena]["rates"]
            tried = {str(lr): score(arena, arm, lr, TUNING) for lr in rates if len(rates) > 1}
            best = max(rates, key=lambda lr: tried.get(str(lr), 0.0))
            paid = [score(arena, arm, best, seed) for seed in ARENAS[arena]["seeds"]]
            row = {"arena": arena, "arm": arm, "tried": tried, "lr": best, "paid": paid}
            rows = json.loads(RECORD.read_text()) if RECORD.exists() else []
            rows = [r for r in rows if (r["arena"], r["arm"]) != (arena, arm)]
            RECORD.write_text("[\n" + ",\n".join(json.dumps(each) for each in [*rows, row]) + "\n]\n")
            print(json.dumps(row), flush=True)


def table(rows: list[dict[str, Any]], arena: str) -> str:
    """Return the record of an arena as a table."""
    lines = ["| | rate | mean | each seed |", "| --- | --- | --- | --- |"]
    known = {row["arm"]: row for row in rows if row["arena"] == arena}
    for arm in (known[arm] for arm in ARENAS[arena]["arms"] if arm in known):
        paid = ", ".join(f"{x:.2f}" for x in arm["paid"])
        lines.append(f"| `{arm['arm']}` | {arm['lr']:g} | {np.mean(arm['paid']):.2f} | {paid} |")
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
