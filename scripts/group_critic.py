"""Hold group baselines against a critic, and a policy that remembers against one that does not, each at its own rate.

Run `python scripts/group_critic.py runs [ARENA …]` for docs/group_critic.json, `… page` for the tables of
docs/control.md. Every arm of an arena plays the same number of episodes. Rates are tried on two seeds apart: the
arena's first, and where the best of them lies at an end, further ones beyond it, until it does not.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from control import PAGE, QUIET, TUNING, last_quarter
from effects_report import interval
from finished import finished
from grouprl.config.run import parse_config
from page_record import fill, keep

RECORD = Path(__file__).parent.parent / "docs" / "group_critic.json"
WALK = "env:grouprl.envs.construction.coverage:CoverageWalk"
LOCK = "env:grouprl.envs.construction.combination_lock:CombinationLock"
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
RATES = (1e-2, 3e-2, 1e-1)
MOST_RATES, DECIMALS = 6, 3
SMALL = {"model": {"name": "mlp", "settings": {"hidden": [16]}}}
REMEMBERS = {"name": "recurrent", "settings": {"width": 16}}
ARENAS: dict[str, dict[str, Any]] = {
    "coverage": {
        "task": {"name": WALK, "turns": 15, "config": {"side": [4, 4], "start": [1, 1], "steps": 15}},
        **SMALL,
        "steps": 30,
        "batch": {"epochs": 2},
        "arms": ARMS,
        "rates": RATES,
        "seeds": range(10),
    },
    "combination": {
        "task": {"name": LOCK, "turns": 5, "config": {"horizon": 5, "numbers": 3}},
        **SMALL,
        "steps": 60,
        "batch": {"epochs": 1},
        "arms": ARMS,
        "rates": RATES,
        "seeds": range(10),
    },
    "tours": {
        "task": {"name": "construct:tsp", "count": 8},
        "model": {"name": "pointer", "settings": {"width": 32, "layers": 1}},
        "steps": 80,
        "batch": {"epochs": 1, "prompts": 4, "group_size": 16},
        "arms": {
            "ppo_control": {
                "method": {**CRITIC["method"], "gamma": 1.0, "lam": 1.0, "size": 512},
                "batch": {"prompts": 64, "group_size": 1},
            },
            "grpo": {"method": "grpo"},
            "dr_grpo": {"method": "dr_grpo"},
            "rloo": {"method": "rloo"},
        },
        "rates": (1e-3, 3e-3, 1e-2),
        "seeds": range(10),
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
        finished(config, Path(kept) / "run")
        return last_quarter(Path(kept) / "run", "reward_mean")


def record(names: list[str]) -> None:
    """Tune every arm of the arenas, run it on all seeds, and put it into the record."""
    for arena in names:
        for arm in ARENAS[arena]["arms"]:
            tried, best = tuned(arena, arm)
            paid = [score(arena, arm, best, seed) for seed in ARENAS[arena]["seeds"]]
            row = {"arena": arena, "arm": arm, "tried": tried, "lr": best, "paid": paid}
            keep(RECORD, row, ("arena", "arm"))


def tuned(arena: str, arm: str) -> tuple[dict[str, float], float]:
    """Return what an arm was paid at the rates that were tried, and the best of these; a single rate is not tried."""
    rates = list(ARENAS[arena]["rates"])
    if len(rates) == 1:
        return {}, rates[0]
    tried: dict[str, float] = {}
    while True:
        for lr in (rate for rate in rates if str(rate) not in tried):
            paid = [score(arena, arm, lr, seed) for seed in (TUNING, TUNING + 1)]
            tried[str(lr)] = round(float(np.mean(paid)), DECIMALS)
        best = max(rates, key=lambda lr: tried[str(lr)])
        if best not in (min(rates), max(rates)) or len(rates) == MOST_RATES:
            return tried, best
        rates.append(float(f"{best / 3 if best == min(rates) else best * 3:.2g}"))


def table(rows: list[dict[str, Any]], arena: str) -> str:
    """Return the record of an arena as a table."""
    known = {row["arm"]: row for row in rows if row["arena"] == arena}
    first, *others = (known[arm] for arm in ARENAS[arena]["arms"] if arm in known)
    lines = [f"| | rate | mean | beside `{first['arm']}` |", "| --- | --- | --- | --- |"]
    lines.append(f"| `{first['arm']}` | {rate(first)} | {words(first['paid'])} | |")
    for arm in others:
        apart = [a - b for a, b in zip(arm["paid"], first["paid"], strict=True)]
        lines.append(f"| `{arm['arm']}` | {rate(arm)} | {words(arm['paid'])} | {words(apart, '+.2f')} |")
    return "\n".join(lines)


def rate(row: dict[str, Any]) -> str:
    """Return the rate of an arm, with a star where it is the lowest or the highest of those tried."""
    ends = sorted(map(float, row["tried"]))
    return f"{row['lr']:g}" + "*" * (bool(ends) and row["lr"] in (ends[0], ends[-1]))


def words(paid: list[float], form: str = ".2f") -> str:
    """Return the mean of seeds with its interval of 95 %."""
    low, middle, high = interval(paid)
    return f"{middle:{form}} [{low:{form}}, {high:{form}}]"


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "runs":
        record(sys.argv[2:] or list(ARENAS))
    else:
        rows = json.loads(RECORD.read_text())
        fill(PAGE, {arena: table(rows, arena) for arena in ARENAS})
