"""Train juries with and without losses in their latent space, each at its own best rate, and record what they earn.

Run `python scripts/latent_spaces.py runs 0,1,2` (seeds) for docs/latent_spaces.json, `... page` for docs/teams.md.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from finished import finished
from page_record import fill, tuned

DOCS = Path(__file__).parent.parent / "docs"
RECORD, PAGE = DOCS / "latent_spaces.json", DOCS / "teams.md"
RATES, TUNED_ON, STEPS, HELD = (3e-3, 1e-2, 3e-2), 9, 20, 128
ARMS: dict[str, dict[str, float]] = {"mapo_lso": {}, "base": {"dynamics": 0.0, "prediction": 0.0}}


def settings(arm: str, seed: int, lr: float) -> dict[str, Any]:
    """Return the configuration of a run."""
    return {
        "task": {"name": "env:grouprl.envs.builtin.jury:Jury", "turns": 20, "config": {"team": True}},
        "model": {"name": "latent_team", "settings": {"hidden": [32], "width": 32}},
        "method": {"name": "mapo_lso", "gamma": 1.0, **ARMS[arm]},
        "seed": seed,
        "steps": STEPS,
        "batch": {"prompts": 32, "group_size": 1, "epochs": 4, "minibatches": 4},
        "optim": {"lr": lr, "schedule": "constant"},
        "eval": {"every": 0, "prompts": HELD, "final_prompts": HELD},
        "run": {"threads": 1, "rollouts_every": 1000},
    }


def measured(arm: str, seed: int, lr: float, folder: Path) -> dict[str, Any]:
    """Run, and return what held-out juries earn before and after, and how often they are right."""
    begun = time.process_time()
    finished(settings(arm, seed, lr), folder)
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["phase"] == "eval"]
    return {
        "before": round(rows[0]["eval/reward"], 3),
        "after": round(rows[-1]["eval/reward"], 3),
        "right": [round(rows[-1][f"eval/pass@1{word}"], 3) for word in ("", "_low", "_high")],
        "seconds": round(time.process_time() - begun),
    }


def record(seeds: list[int], kept: Path) -> None:
    """Tune the rate of each arm on a seed of its own, run it on `seeds`, and put what is measured into the record."""
    for arm in ARMS:

        def run(seed: int, lr: float, arm: str = arm) -> dict[str, Any]:
            return measured(arm, seed, lr, kept / f"{arm}-{seed}-{lr}")

        tuned(RECORD, arm, run, itemgetter("after"), RATES, TUNED_ON, seeds)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the record as a table."""
    names = {"mapo_lso": "`mapo_lso`", "base": "weights of 0, which is PPO"}
    heads = ("method", "seed", "rate", "before", "after", "right verdicts", "processor s")
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for row in sorted(rows, key=lambda row: (list(names).index(row["arm"]), row["seed"])):
        mid, low, high = row["right"]
        lines.append(
            f"| {names[row['arm']]} | {row['seed']} | {row['lr']:g} | {row['before']:.2f} | {row['after']:.2f} | "
            f"{mid:.2f} [{low:.2f}, {high:.2f}] | {row['seconds']} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "runs":
        with tempfile.TemporaryDirectory() as kept:
            record([int(word) for word in sys.argv[2].split(",")], Path(kept))
    else:
        fill(PAGE, {"latent spaces": table(json.loads(RECORD.read_text(encoding="utf-8")))})
