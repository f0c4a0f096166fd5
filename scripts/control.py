"""Run methods for control beside an obvious rival, each at the best of its rates, and record what they were paid.

Run `python scripts/control.py runs [ARENA …]` for docs/control.json, `… page` for the tables of docs/control.md.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from control_arms import ARMS, COST, COSTS, LIMIT, PAY
from control_stored import STORED
from finished import finished
from grouprl.envs.construction.arms import Arms
from grouprl.envs.construction.combination_lock import CombinationLock, random_episodes
from grouprl.envs.construction.inventory import Inventory, expected_return
from grouprl.envs.construction.swarm import Kuramoto
from grouprl.envs.construction.walled_grid import WalledGrid
from grouprl.policy import Build, Mlp
from grouprl.records.examples import Example
from grouprl.records.offline import StoredEpisode
from page_record import fill, keep

DOCS = Path(__file__).parent.parent / "docs"
RECORD, PAGE = DOCS / "control.json", DOCS / "control.md"
TUNING, SEEDS = 10, (0, 1, 2)
"""The seed on which rates are compared, and those of the table where an arena has none of its own."""
STILL = 1e-9
"""A rate at which one step leaves a policy as it begins."""
NOT_SETTINGS = ("methods", "measure", "rate", "before", "seeds")
"""What an arena says beside the settings of its runs."""
QUIET = {"every": 0, "prompts": 2, "final_prompts": 2}
GRID = "env:grouprl.envs.construction.coverage:CoverageWalk"
CARTPOLE = {"base": "ppo_control", "gamma": 0.98, "lam": 0.8, "size": 256}
PENALTY = {"base": "fixpo", "gamma": 0.98, "lam": 0.8, "size": 256, "entropy_coef": 0.0}
WORLDS = "env:grouprl.envs.construction"
DEMANDS = [[comb(8, k) * p**k * (1 - p) ** (8 - k) for k in range(9)] for p in (0.3, 0.1, 0.2, 0.4, 0.9)]
"""Binomial demands of up to 8 units: four are low, one is high; the first is the nominal one."""
STORE = {"periods": 1, "penalty": 2.0}
BLOCK = {"base": "ppo_control", "gamma": 1.0, "lam": 0.95, "size": 80}
AFTER = BLOCK | {"base": "pdppo", "after": f"{WORLDS.removeprefix('env:')}.inventory:after_order", "post_lr": 1e-2}
SINGLY = {"batch": {"prompts": 16, "group_size": 1, "epochs": 4}}
LOCK = f"{WORLDS.removeprefix('env:')}.combination_lock"
HYBRID = {"base": "hnpg", "gamma": 1.0}
EASY = {"horizon": 3, "numbers": 4}
SWARM = {"oscillators": 50, "steps": 20}


def saved(folder: Path, world: Any) -> Callable[[Any], Any]:
    """Return the saved policy of a run as a function of one observation: to logits, or to the mean of its actions."""
    state = load_file(folder / "model" / "policy.safetensors")
    policy = Mlp(Build(world.spaces, seed=0, values=any("value" in name for name in state)), hidden=(32,))
    policy.load_trainable_state(state)
    return lambda seen: policy.module["mean"](torch.tensor(np.asarray(seen, np.float32)[None]))[0].detach().double()


def arm_shares(folder: Path) -> np.ndarray:
    """Return the share of each arm under the saved policy, [A]."""
    return np.asarray(saved(folder, Arms())([1.0]).softmax(-1).numpy())


def arms_pay(folder: Path) -> float:
    """Return the expected pay of the arms, exactly."""
    return float(arm_shares(folder) @ PAY)


def within_limit(folder: Path) -> float:
    """Return the expected pay of the arms less twice what their cost exceeds the limit by, exactly."""
    shares = arm_shares(folder)
    return float(shares @ PAY - 2 * max(0.0, shares @ COST - LIMIT))


def worst_demand(folder: Path) -> float:
    """Return the expected reward under the worst of the demands, exactly."""
    world = Inventory(**STORE)
    chance_a = saved(folder, world)(world.reset(Example("any", {}), 0).values).softmax(-1).numpy()
    paid_ca = [
        [expected_return(Inventory(demand, **STORE), lambda stock, coming, order=order: order) for order in range(9)]
        for demand in DEMANDS
    ]
    return float((np.array(paid_ca) @ chance_a).min())


def larger_swarm(folder: Path) -> float:
    """Return the mean reward of 20 episodes in a swarm of 200, by the mean of the policy's actions."""
    total, policy = 0.0, saved(folder, Kuramoto(**SWARM))
    for seed in range(20):
        world = Kuramoto(**{**SWARM, "oscillators": 200})
        seen, over = world.reset(Example("any", {}), seed).values, False
        while not over:
            step = world.step(policy(seen).clamp(-1, 1).numpy())
            seen, over = step.observation.values, step.terminated
            total += step.reward / 20
    return total


def new_levels(folder: Path) -> float:
    """Return the mean reward on 100 levels that are no prompts of training, by the likeliest actions."""
    world, total = WalledGrid(), 0.0
    policy = saved(folder, world)
    for number in range(10_000, 10_100):
        seen, over = world.reset(Example("level", "", {"seed": number}), 0).values, False
        while not over:
            step = world.step(int(policy(seen).argmax()))
            seen, over = step.observation.values, step.terminated
            total += float(step.reward) / 100
    return total


def easy_chance() -> list[StoredEpisode]:
    """Return trajectories of the easy lock that were paid nothing."""
    return random_episodes(CombinationLock(**EASY))


DIALLING: dict[str, Any] = {
    "model": {"name": "mlp", "settings": {"hidden": [32]}},
    "batch": {"prompts": 32, "group_size": 1, "minibatches": 1},
    "optim": {"schedule": "constant"},
    "rate": "delta",
    "measure": "reward_mean",
}
UNLOCKING = {"base": "ppo_control", "gamma": 0.95, "lam": 0.65, "entropy_coef": 0.01}
ARENAS: dict[str, dict[str, Any]] = {
    **STORED,
    "unlocking": {
        "task": {"name": f"{WORLDS}.workshop:Workshop", "turns": 20},
        "data": {"prompts": 1000},
        "model": {"name": "achievements", "settings": {"hidden": [32, 32]}},
        "batch": {"prompts": 16, "group_size": 1, "epochs": 3},
        "optim": {"schedule": "constant", "grad_clip": 0.5},
        "steps": 60,
        "seeds": range(8),
        "measure": "reward_mean",
        "methods": {
            "ppo_control": (UNLOCKING, (3e-3, 1e-2)),
            "ppo_ad": (UNLOCKING | {"base": "ppo_ad"}, (3e-3, 1e-2)),
        },
    },
    "lock": {
        **DIALLING,
        "task": {"name": f"{WORLDS}.combination_lock:CombinationLock", "turns": 10},
        "steps": 40,
        "seeds": range(8),
        "methods": {
            "nothing stored": (HYBRID | {"share": 0.0}, (0.1,)),
            "chance stored": (HYBRID | {"stored": f"{LOCK}:random_episodes"}, (0.1,)),
            "hnpg": (HYBRID | {"stored": f"{LOCK}:expert_episodes"}, (0.03, 0.1)),
        },
    },
    "easy": {
        **DIALLING,
        "task": {"name": f"{WORLDS}.combination_lock:CombinationLock", "turns": 3, "config": EASY},
        "steps": 12,
        "methods": {
            "nothing stored": (HYBRID | {"share": 0.0}, (0.03, 0.1)),
            "hnpg": (HYBRID | {"stored": f"{__file__}:easy_chance"}, (0.03, 0.1)),
        },
    },
    "region": {
        "task": {"name": "control:CartPole-v1", "horizon": 32},
        "model": {"name": "mlp", "settings": {"hidden": [32, 32]}},
        "batch": {"prompts": 8, "group_size": 1, "epochs": 8},
        "optim": {"schedule": "constant", "grad_clip": 0.5},
        "steps": 30,
        "seeds": range(8),
        "measure": "reward/return",
        "methods": {"ppo_control": (CARTPOLE, (1e-3, 3e-3)), "fixpo": (PENALTY, (1e-3, 3e-3))},
    },
    "surplus": {
        "task": {"name": "control:CartPole-v1", "horizon": 32},
        "model": {"name": "mlp", "settings": {"hidden": [32, 32]}},
        "batch": {"prompts": 8, "group_size": 1, "epochs": 8},
        "optim": {"schedule": "constant", "grad_clip": 0.5},
        "steps": 30,
        "measure": "reward/return",
        "methods": {
            "ppo_control": (CARTPOLE, (1e-3, 3e-3)),
            "no adapting": (CARTPOLE | {"buffer": {"part": "recent_rows", "batches": 2}}, (1e-3, 3e-3)),
            "props": (CARTPOLE | {"base": "props"}, (1e-3, 3e-3)),
        },
    },
    "drifts": {
        "task": {"name": "control:CartPole-v1", "horizon": 32},
        "model": {"name": "mlp", "settings": {"hidden": [32, 32]}},
        "batch": {"prompts": 8, "group_size": 1, "epochs": 8},
        "optim": {"schedule": "constant", "grad_clip": 0.5},
        "steps": 30,
        "measure": "reward/return",
        "methods": {
            "discovered_drift": (CARTPOLE | {"objective": "discovered_drift"}, (1e-3, 3e-3)),
            "horizon_drift": (CARTPOLE | {"objective": "horizon_drift"}, (1e-3, 3e-3)),
        },
    },
    "levels": {
        "task": {"name": f"{WORLDS}.walled_grid:WalledGrid", "turns": 15},
        "data": {"prompts": 400},
        "model": {"name": "mlp", "settings": {"hidden": [32]}},
        "batch": {"prompts": 8, "group_size": 8, "minibatches": 1},
        "optim": {"schedule": "constant"},
        "steps": 40,
        "seeds": range(8),
        "measure": new_levels,
        "methods": {
            "grpo": ({"name": "grpo"}, (1e-2, 3e-2)),
            "by spread": ({"base": "groove", "score": "spread"}, (1e-2, 3e-2)),
            "groove": ({"name": "groove"}, (1e-2, 3e-2)),
        },
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
            "harpg": ({"base": "harpg", "baseline": "group"}, (0.3, 1.0)),
            "power 0": ({"base": "n_pg_igt", "baseline": "group", "power": 0.0}, (0.3, 1.0)),
            "n_pg_igt": ({"base": "n_pg_igt", "baseline": "group"}, (0.3, 1.0)),
        },
    },
    "cases": {
        "task": {
            "name": f"{WORLDS}.inventory:Inventory",
            "turns": 1,
            "own_luck": True,
            "config": STORE,
            "grid": {"demand": DEMANDS},
        },
        "data": {"prompts": 5},
        "model": {"name": "mlp", "settings": {"hidden": [32]}},
        "batch": {"prompts": 5, "group_size": 12, "minibatches": 1},
        "optim": {"schedule": "constant"},
        "steps": 150,
        "measure": worst_demand,
        "methods": {
            "reinforce": ({"base": "reinforce", "baseline": "group"}, (3e-3, 1e-2)),
            "iwocs": ({"name": "iwocs", "baseline": "group"}, (3e-3, 1e-2)),
            "drpg": ({"name": "drpg", "baseline": "group"}, (3e-3, 1e-2)),
        },
    },
    "target": {**ARMS, "measure": arms_pay},
    "limit": {**COSTS, "measure": within_limit},
    "orders": {
        "task": {"name": f"{WORLDS}.inventory:Inventory", "turns": 6, "config": {"lead": 1, "periods": 6}},
        "model": {"name": "mlp", "settings": {"hidden": [32]}},
        "batch": {"prompts": 2, "group_size": 8, "minibatches": 1},
        "optim": {"schedule": "constant"},
        "steps": 60,
        "measure": "reward_mean",
        "methods": {
            "reinforce": ({"base": "reinforce", "baseline": "group"}, (1e-2, 3e-2)),
            "ppo_control": (BLOCK, (1e-2, 3e-2), SINGLY),
            "mean of both": (AFTER | {"combine": "mean"}, (1e-2, 3e-2), SINGLY),
            "pdppo": (AFTER, (1e-2, 3e-2), SINGLY),
        },
    },
    "blocks": {
        "task": {"name": f"{WORLDS}.bandit_blocks:BanditBlock", "turns": 10, "config": {"pulls": 10}},
        "model": {"name": "mlp", "settings": {"hidden": [32]}},
        "batch": {"prompts": 8, "group_size": 1, "epochs": 4},
        "optim": {"schedule": "constant"},
        "steps": 40,
        "measure": "reward_mean",
        "methods": {
            "no memory": (BLOCK, (1e-2,), {"task": {"config": {"pulls": 10, "memory": False}}}),
            "gamma 0": (BLOCK | {"gamma": 0.0}, (1e-2, 3e-2)),
            "ppo_control": (BLOCK, (1e-2, 3e-2)),
        },
    },
    "swarm": {
        "task": {"name": f"{WORLDS}.swarm:Kuramoto", "turns": 20, "config": SWARM},
        "model": {"name": "mlp", "settings": {"hidden": [32], "log_std": -0.5}},
        "batch": {"prompts": 2, "group_size": 4, "minibatches": 1},
        "optim": {"schedule": "constant"},
        "steps": 40,
        "measure": larger_swarm,
        "methods": {
            "reinforce": ({"base": "reinforce", "baseline": "group"}, (1e-2, 3e-2)),
            "ppo_control": (BLOCK, (1e-2, 3e-2), {"batch": {"prompts": 8, "group_size": 1, "epochs": 4}}),
        },
    },
}


def settings(arena: str, label: str, lr: float, seed: int) -> dict[str, Any]:
    """Return the configuration of a run, whose stored rows are there."""
    ARENAS[arena].get("before", lambda: None)()
    place = {key: value for key, value in ARENAS[arena].items() if key not in NOT_SETTINGS}
    chosen, _, *own = ARENAS[arena]["methods"][label]
    place |= {key: {**place.get(key, {}), **changes} for each in own for key, changes in each.items() if key == "task"}
    place |= {key: changes for each in own for key, changes in each.items() if key != "task"}
    rate = ARENAS[arena].get("rate", "lr")
    method = place | {"method": chosen if rate == "lr" else {**chosen, rate: lr}}
    method |= {"optim": {**place["optim"], "lr": lr}}
    return method | {
        "seed": seed,
        "warmup": {"steps": 0},
        "eval": place.get("eval", QUIET),
        "run": {"threads": 1, "rollouts_every": 1000},
    }


def score(arena: str, label: str, lr: float, seed: int, **changes: Any) -> float:
    """Return the arena's measure of a run: a metric over its last quarter, or what a function makes of its folder."""
    measure = ARENAS[arena]["measure"]
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept) / "run"
        finished(settings(arena, label, lr, seed) | changes, folder)
        return round(measure(folder), 3) if callable(measure) else last_quarter(folder, measure)


def last_quarter(folder: Path, metric: str) -> float:
    """Return the mean of a metric over the last quarter of a run's steps."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if row["phase"] == "train"]
    found = [row.get(metric) for row in steps[3 * len(steps) // 4 :]]
    return round(float(np.mean([x for x in found if x is not None])), 3)


def record(names: list[str]) -> None:
    """Tune every method of the arenas, "arena" or "arena/method", run it on all seeds, and put it into the record."""
    for arena, _, only in (name.partition("/") for name in names):
        for label, (_, rates, *_) in ARENAS[arena]["methods"].items():
            if only not in label:
                continue
            begun = time.process_time()
            tried = {str(lr): score(arena, label, lr, TUNING) for lr in rates}
            best = max(rates, key=lambda lr: tried[str(lr)])
            seeds = ARENAS[arena].get("seeds", SEEDS)
            paid = [score(arena, label, best, seed) for seed in seeds]
            began = [score(arena, label, STILL, seed, steps=1) for seed in seeds]
            row = {"arena": arena, "method": label, "tried": tried, "lr": best, "began": began, "paid": paid}
            row["seconds"] = round((time.process_time() - begun) / (len(rates) + len(seeds)))
            keep(RECORD, row, ("arena", "method"))


def words_of(label: str, order: list[str]) -> str:
    """Return an arm in words: a method, alone or with settings; settings alone are of the arena's last method."""
    name, _, rest = label.partition(", ")
    if " " in name:
        name, rest = next(each for each in reversed(order) if " " not in each), label
    return f"`{name}`" + (f", {rest}" if rest else "")


def table(rows: list[dict[str, Any]], arena: str) -> str:
    """Return the record of an arena as a table."""
    last = ARENAS[arena].get("seeds", SEEDS)[-1]
    lines = [f"| method | rate | seeds 0 to {last} | mean | processor s |", "| --- | --- | --- | --- | --- |"]
    order = list(ARENAS[arena]["methods"])
    for row in sorted((r for r in rows if r["arena"] == arena), key=lambda r: order.index(r["method"])):
        paid = ", ".join(f"{x:.2f}" for x in row["paid"])
        ends = f"{paid} | {np.mean(row['paid']):.2f} | {row['seconds']}"
        lines.append(f"| {words_of(row['method'], order)} | {row['lr']:g} | {ends} |")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "runs":
        record(sys.argv[2:] or list(ARENAS))
    else:
        rows = json.loads(RECORD.read_text())
        fill(PAGE, {arena: table(rows, arena) for arena in ARENAS})
