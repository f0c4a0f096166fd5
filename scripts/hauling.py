"""Train teams that choose which loads to walk to, by values (`gmah`) and by PPO, and record them beside two rules.

Run `python scripts/hauling.py runs 0,1,2,3` (seeds) for docs/hauling.json, `... page` for docs/teams.md.
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
from grouprl.envs.builtin.hauling import Hauling
from grouprl.evaluation.pass_at_k import mean_interval
from grouprl.records.examples import Example
from page_record import fill, keep, tuned

DOCS = Path(__file__).parent.parent / "docs"
RECORD, PAGE = DOCS / "hauling.json", DOCS / "teams.md"
RATES, TUNED_ON, ROUNDS, STEPS, PLAYS = (1e-3, 3e-3, 1e-2), 9, 6, 60, 256
LIGHT = (2, 0)
"""Light loads of the worlds; there are two heavy ones in each."""
ARMS = {
    "gmah": {"method": {"name": "gmah", "explore_steps": 40}, "model": {"name": "team_values"}},
    "ppo": {"method": "ppo", "model": {"name": "mlp"}},
}
RULES = ("each its own light load", "both the nearest heavy load")
ANY = Example("any", {})


def settings(name: str, light: int, seed: int, lr: float) -> dict[str, Any]:
    """Return the configuration of a run."""
    arm = ARMS[name]
    return {
        "task": {"name": "env:grouprl.envs.builtin.hauling:Hauling", "turns": ROUNDS, "config": {"light": light}},
        "model": {**arm["model"], "settings": {"hidden": [64]}},
        "method": arm["method"],
        "seed": seed,
        "steps": STEPS,
        "batch": {"prompts": 64, "group_size": 1, "epochs": 2, "minibatches": 8},
        "optim": {"lr": lr, "schedule": "constant"},
        "eval": {"every": 0, "prompts": 1, "final_prompts": PLAYS},
        "run": {"threads": 1, "rollouts_every": 1000},
    }


def run(name: str, light: int, seed: int, lr: float) -> dict[str, Any]:
    """Train, and return what the likeliest choices earn before and after in plays that no run has seen."""
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as kept:
        finished(settings(name, light, seed, lr), Path(kept) / "run")
        lines = (Path(kept) / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    earned = [round(row["eval/greedy_reward"], 3) for row in map(json.loads, lines) if row["phase"] == "eval"]
    return {"began": earned[0], "earned": earned[-1], "seconds": round(time.process_time() - begun)}


def choice(rule: str, own_kf: np.ndarray, light: int) -> np.ndarray:
    """Return the loads that a rule sends the agents to, from what they observe."""
    if rule == RULES[0]:
        return np.arange(2)
    way_kl2 = own_kf[:, :-3].reshape(2, -1, 3)[:, light:, :2]
    return np.full(2, light + int(np.abs(way_kl2).sum(-1).max(0).argmin()))


def ruled(rule: str, light: int, seed: int) -> float:
    """Return what a rule earns in one play."""
    world, earned = Hauling(light=light, rounds=ROUNDS), 0.0
    seen = world.reset(ANY, seed)
    for _ in range(ROUNDS):
        found = world.step(choice(rule, np.asarray(seen.values["own"]), light))  # type: ignore[call-overload,index]
        seen, earned = found.observation, earned + found.reward  # type: ignore[assignment]
    return earned


def record(seeds: list[int]) -> None:
    """Put the rules and the trained teams into the record."""
    for light in LIGHT:
        for rule in RULES[light == 0 :]:
            mean = float(np.mean([ruled(rule, light, 10_000 + each) for each in range(PLAYS)]))
            keep(RECORD, {"arm": f"{rule}, {light} light", "seed": None, "earned": round(mean, 3)}, ("arm", "seed"))
        for name in ARMS:
            act = partial(run, name, light)
            tuned(RECORD, f"{name}, {light} light", act, itemgetter("earned"), RATES, TUNED_ON, seeds)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the record as a table."""
    lines = ["| light loads | chosen by | rate | seeds | mean, interval | processor s |", "| --- " * 6 + "|"]
    for light in LIGHT:
        for name in (*RULES[light == 0 :], *ARMS):
            own = [row for row in rows if row["arm"] == f"{name}, {light} light"]
            lines.append(f"| {light} | {' | '.join(cells(name, own))} |")
    return "\n".join(lines)


def cells(name: str, rows: list[dict[str, Any]]) -> list[str]:
    """Return who chose, the rate, what each seed earned, the mean and its interval, and the time."""
    if name in RULES:
        return [name, "–", "–", f"{rows[0]['earned']:.2f}", "–"]
    earned = [row["earned"] for row in rows]
    found = mean_interval(np.array(earned))
    told = ", ".join(f"{each:.2f}" for each in earned)
    interval = f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
    return [f"`{name}`", f"{rows[0]['lr']:g}", told, interval, f"{np.mean([row['seconds'] for row in rows]):.0f}"]


if __name__ == "__main__":
    if sys.argv[1] == "runs":
        record([int(each) for each in sys.argv[2].split(",")])
    else:
        fill(PAGE, {"hauling": table(json.loads(RECORD.read_text(encoding="utf-8")))})
