"""Train teams in ColorGrid by IPPO's clip and by decentralised PO's penalties, and record what they earn.

Run `python scripts/grids.py runs 0,1,2,3` (seeds) for docs/grids.json, perhaps with one arm behind it, `... page` for
docs/teams.md.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from finished import finished
from grouprl.evaluation.pass_at_k import mean_interval
from page_record import fill, tuned

DOCS = Path(__file__).parent.parent / "docs"
RECORD, PAGE = DOCS / "grids.json", DOCS / "teams.md"
RATES, TUNED_ON, STEPS, PLAYS = (0.01, 0.03), 9, 40, 128
PPO = {"gamma": 0.95, "lam": 0.95, "size": 256}
ARMS: dict[str, dict[str, Any]] = {"ippo": {"name": "ippo", **PPO}, "dec_dpo": {"name": "dec_dpo", **PPO}}
GRID = {"size": 2, "blocks": 1, "rounds": 8}


def settings(arm: str, seed: int, lr: float) -> dict[str, Any]:
    """Return the configuration of a run."""
    return {
        "task": {"name": "env:grouprl.envs.builtin.squads:ColorGrid", "turns": 16, "config": GRID},
        "model": {"name": "mlp", "settings": {"hidden": [64]}},
        "method": ARMS[arm],
        "seed": seed,
        "steps": STEPS,
        "batch": {"prompts": 64, "group_size": 1, "epochs": 4},
        "optim": {"lr": lr, "schedule": "constant"},
        "eval": {"every": 0, "prompts": 2, "final_prompts": PLAYS},
        "run": {"threads": 1, "rollouts_every": 1000},
    }


def run(arm: str, seed: int, lr: float) -> dict[str, Any]:
    """Train, and return what held-out episodes earn before and after, by drawn actions and by the likeliest ones."""
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as kept:
        finished(settings(arm, seed, lr), Path(kept) / "run")
        lines = (Path(kept) / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    first, *_, last = (row for row in map(json.loads, lines) if row["phase"] == "eval")
    measured = {"began": first["eval/reward"], "earned": last["eval/reward"], "likeliest": last["eval/greedy_reward"]}
    rounded = {name: round(value, 3) for name, value in measured.items()}
    return {**rounded, "seconds": round(time.process_time() - begun)}


def record(seeds: list[int], arms: list[str]) -> None:
    """Put the trained teams into the record."""
    for arm in arms:
        tuned(RECORD, arm, partial(run, arm), itemgetter("earned"), RATES, TUNED_ON, seeds)


def told(values: list[float]) -> str:
    """Return the mean of values with its interval."""
    found = mean_interval(np.array(values))
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def table(rows: list[dict[str, Any]]) -> str:
    """Return the record as a table."""
    lines = ["| method | rate | before | seeds | mean, interval | likeliest actions | processor s |"]
    lines.append("| --- " * 7 + "|")
    for arm in ARMS:
        own = [row for row in rows if row["arm"] == arm]
        began, earned, likeliest, seconds = ([row[name] for row in own] for name in COLUMNS)
        shown = ", ".join(f"{each:.2f}" for each in earned)
        lines.append(
            f"| `{arm}` | {own[0]['lr']:g} | {np.mean(began):.2f} | {shown} | {told(earned)} | {told(likeliest)} | "
            f"{np.mean(seconds):.0f} |"
        )
    return "\n".join(lines)


COLUMNS = ("began", "earned", "likeliest", "seconds")

if __name__ == "__main__":
    if sys.argv[1] == "runs":
        record([int(each) for each in sys.argv[2].split(",")], sys.argv[3:] or list(ARMS))
    else:
        fill(PAGE, {"grids": table(json.loads(RECORD.read_text(encoding="utf-8")))})
