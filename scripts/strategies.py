"""Train teams of several strategies and of one, and record what is left to them where a place is closed.

Run `python scripts/strategies.py runs 0,1,2` (seeds) for docs/strategies.json, `... page` for docs/teams.md.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from finished import finished
from grouprl.policy import Build, Mlp
from grouprl.policy.vectors.module_policy import MODEL_FILE
from grouprl.records.examples import Example
from grouprl.rollout.episode import Start
from grouprl.rollout.local.array_sampler import ArraySampler
from grouprl.rollout.vectors.vector_episodes import play_task
from grouprl.tasks import load_task
from page_record import fill, tuned

DOCS = Path(__file__).parent.parent / "docs"
RECORD, PAGE = DOCS / "strategies.json", DOCS / "teams.md"
PLACES, STEPS, TRIED, HELD = 3, 20, 16, 128
RATES, TUNED_ON = (3e-3, 1e-2), 9
PPO = {"gamma": 1.0, "size": 256, "entropy_coef": 0.1}
ARMS: dict[str, dict[str, Any]] = {
    "mra": {"name": "mra", "strategies": PLACES, "information": 0.3, "decoder_lr": 3e-3, **PPO},
    "no bonus": {"name": "mra", "strategies": PLACES, "information": 0.0, **PPO},
    "ippo": {"name": "ippo", **PPO},
}


def task_of(arm: str, worth: tuple[float, ...] = (1.0,) * PLACES) -> dict[str, Any]:
    """Return the task of an arm, in which places may be worth other sums."""
    told = {} if arm == "ippo" else {"strategies": PLACES}
    config = {"worth": list(worth)} if worth != (1.0,) * PLACES else {}
    return {"name": "env:grouprl.envs.builtin.meeting:MeetingPlaces", "turns": 10, "config": {**config, **told}}


def settings(arm: str, seed: int, lr: float) -> dict[str, Any]:
    """Return the configuration of a run."""
    return {
        "task": task_of(arm),
        "model": {"name": "mlp", "settings": {"hidden": [16]}},
        "method": ARMS[arm],
        "seed": seed,
        "steps": STEPS,
        "batch": {"prompts": 16, "group_size": 6, "epochs": 4},
        "optim": {"lr": lr, "schedule": "constant"},
        "eval": {"every": 0, "prompts": HELD, "final_prompts": HELD},
        "run": {"threads": 1, "rollouts_every": 1000},
    }


def paid(policy: Any, task: Any, number: int, split: str, count: int) -> float:
    """Return the mean that parties of a split earn with a strategy."""
    starts = []
    for index in range(count):
        example = task.example(split, index)
        told = Example(example.id, example.prompt, {**example.columns, "told": number})
        starts.append(Start(told, 2 * index, 2 * index + 1))
    played = play_task(task, ArraySampler(policy), starts)
    return float(np.mean([outcome["turn_rewards"] for outcome in played.outcomes]))


def closed(arm: str, policy: Any) -> list[float]:
    """Return, for each place that is closed, what held-out parties earn with the strategy that was best in trials."""
    found = []
    for place in range(PLACES):
        task = load_task(task_of(arm, tuple(float(other != place) for other in range(PLACES))))
        strategies = range(1 if arm == "ippo" else PLACES)
        best = max(strategies, key=lambda number: paid(policy, task, number, "train", TRIED))
        found.append(round(paid(policy, task, best, "eval", HELD), 3))
    return found


def measured(arm: str, seed: int, lr: float, folder: Path) -> dict[str, Any]:
    """Run, and return what held-out parties earn: before, after, and where a place is closed."""
    begun = time.process_time()
    finished(settings(arm, seed, lr), folder)
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["phase"] == "eval"]
    told = [row.get("strategy_information") for row in map(json.loads, lines) if row["phase"] == "train"]
    task = load_task(task_of(arm))
    policy = Mlp(Build(spaces=task.spaces, task=task, seed=seed, values=True), hidden=(16,))
    policy.load_trainable_state(load_file(folder / "model" / MODEL_FILE))
    left = closed(arm, policy)
    return {
        "before": round(rows[0]["eval/reward"], 3),
        "after": round(rows[-1]["eval/reward"], 3),
        "information": None if told[-1] is None else round(told[-1], 2),
        "closed": left,
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
    names = {"mra": "`mra`", "no bonus": "`mra` with `information: 0`", "ippo": "`ippo`, told nothing"}
    heads = ("method", "seed", "rate", "before", "after", "a place is closed", "information", "processor s")
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for row in sorted(rows, key=lambda row: (list(names).index(row["arm"]), row["seed"])):
        told = "" if row["information"] is None else f"{row['information'] + 0:.2f}"
        each = ", ".join(f"{x:.2f}" for x in row["closed"])
        lines.append(
            f"| {names[row['arm']]} | {row['seed']} | {row['lr']:g} | {row['before']:.2f} | {row['after']:.2f} | "
            f"{np.mean(row['closed']):.2f} ({each}) | {told} | {row['seconds']} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "runs":
        with tempfile.TemporaryDirectory() as kept:
            record([int(word) for word in sys.argv[2].split(",")], Path(kept))
    else:
        fill(PAGE, {"strategies": table(json.loads(RECORD.read_text(encoding="utf-8")))})
