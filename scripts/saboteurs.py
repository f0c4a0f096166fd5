"""Train juries, then an adversary in each of them with and without AMI's influence, and record what the juries keep.

Run `python scripts/saboteurs.py runs 0,1,2` (seeds) for docs/saboteurs.json, `... page` for docs/teams.md.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from finished import finished
from page_record import fill, keep

DOCS = Path(__file__).parent.parent / "docs"
RECORD, PAGE = DOCS / "saboteurs.json", DOCS / "teams.md"
WORLD = "env:grouprl.envs.builtin.jury"
RATES, TUNED_ON, STEPS = (3e-3, 1e-2, 3e-2), 9, 10
ARMS: dict[str, dict[str, Any]] = {"ami": {"influence": 0.1}, "no influence": {"influence": 0.0}}
PPO = {"gamma": 1.0, "lam": 0.95, "size": 256}


def settings(task: dict[str, Any], model: dict[str, Any], method: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the configuration of a run."""
    return {
        "task": task,
        "model": model,
        "method": method | PPO,
        "eval": {"every": 0, "prompts": 256, "final_prompts": 256},
        "run": {"threads": 1, "rollouts_every": 1000},
        **more,
    }


def team(seed: int, folder: Path) -> dict[str, Any]:
    """Train a jury and return what is measured of it."""
    config = settings(
        {"name": f"{WORLD}:Jury", "turns": 20},
        {"name": "mlp", "settings": {"hidden": [32]}},
        {"name": "ippo"},
        seed=seed,
        steps=40,
        batch={"prompts": 64, "group_size": 1, "epochs": 4},
        optim={"lr": 1e-2, "schedule": "constant"},
    )
    return measured(config, folder)


def attack(arm: str, seed: int, lr: float, at: Path, folder: Path) -> dict[str, Any]:
    """Train an adversary in the jury `at` and return what is measured of the jury."""
    config = settings(
        {"name": f"{WORLD}:InfiltratedJury", "turns": 36},
        {"name": "saboteur", "settings": {"team": str(at), "members": 5, "hidden": [32]}},
        {"name": "ami", "members": 5, **ARMS[arm]},
        seed=seed,
        steps=STEPS,
        batch={"prompts": 32, "group_size": 1, "epochs": 4},
        optim={"lr": lr, "schedule": "constant"},
    )
    return measured(config, folder)


def measured(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run, and return the share of episodes with a right verdict before and after, and the adversary's reward."""
    begun = time.process_time()
    if not (folder / "summary.json").exists():
        finished(config, folder)
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["phase"] == "eval"]
    ends = [round(rows[-1][f"eval/pass@1{word}"], 3) for word in ("", "_low", "_high")]
    paid = round(rows[-1]["eval/reward"], 3)
    spent = round(time.process_time() - begun)
    return {"before": round(rows[0]["eval/pass@1"], 3), "right": ends, "paid": paid, "seconds": spent}


def record(seeds: list[int], kept: Path) -> None:
    """Tune the rate of each arm on a seed of its own, run it on `seeds`, and put what is measured into the record."""
    for seed in seeds:
        keep(RECORD, {"arm": "team", "seed": seed, "lr": 1e-2, **team(seed, kept / f"team-{seed}")}, ("arm", "seed"))
    team(TUNED_ON, kept / f"team-{TUNED_ON}")
    for arm in ARMS:
        tried = {}
        for lr in RATES:
            folder = kept / f"{arm}-{TUNED_ON}-{lr}"
            tried[lr] = attack(arm, TUNED_ON, lr, kept / f"team-{TUNED_ON}" / "model", folder)["paid"]
        best = max(tried, key=lambda lr: tried[lr])
        for seed in seeds:
            found = attack(arm, seed, best, kept / f"team-{seed}" / "model", kept / f"{arm}-{seed}-{best}")
            keep(RECORD, {"arm": arm, "seed": seed, "lr": best, "tried": tried, **found}, ("arm", "seed"))


def table(rows: list[dict[str, Any]]) -> str:
    """Return the record as a table."""
    names = {"team": "the team itself", "ami": "`ami`", "no influence": "`ami` with `influence: 0`"}
    lines = ["| who learned last | seed | rate | before | right verdicts | paid | processor s |", "| --- " * 7 + "|"]
    for row in sorted(rows, key=lambda row: (list(names).index(row["arm"]), row["seed"])):
        mid, low, high = row["right"]
        lines.append(
            f"| {names[row['arm']]} | {row['seed']} | {row['lr']:g} | {row['before']:.2f} | "
            f"{mid:.2f} [{low:.2f}, {high:.2f}] | {row['paid']:.2f} | {row['seconds']} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "runs":
        record([int(word) for word in sys.argv[2].split(",")], Path(tempfile.gettempdir()) / "saboteur_runs")
    else:
        fill(PAGE, {"saboteurs": table(json.loads(RECORD.read_text(encoding="utf-8")))})
