"""Arenas of stored trajectories: what control.py runs on rows that it writes before."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from grouprl.records.offline import StoredEpisode
from grouprl.tasks.adapters.trajectories.files import write

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
import choices

CARTS = Path(__file__).parents[1] / "runs" / "control" / "carts.jsonl"
"""Trajectories of CartPole, written before the arena `asked` is planned or run."""


def cart(world: gymnasium.Env, number: int, *, good: bool) -> StoredEpisode:
    """Play an episode of CartPole of 200 actions at most, by a good hand or by chance."""
    luck, (shown, _) = np.random.default_rng(number), world.reset(seed=number)
    seen, acts, ended = [shown], [], False
    while not ended and len(acts) < 200:
        side = int(seen[-1][2] + 0.5 * seen[-1][3] > 0) if good else int(luck.integers(2))
        shown, _, ended, *_ = world.step(side)
        seen.append(shown)
        acts.append(side)
    return StoredEpisode(np.stack(seen), np.array(acts), np.ones(len(acts)), ended)


@cache
def store_carts() -> None:
    """Write a hundred trajectories, of which five are by a good hand."""
    CARTS.parent.mkdir(parents=True, exist_ok=True)
    world = gymnasium.make("CartPole-v1")
    write(CARTS, [cart(world, number, good=number < 5) for number in range(100)])


PAIRED, PREFERRED = CARTS.with_name("swings.jsonl"), CARTS.with_name("preferred_swings.jsonl")
"""Pairs of trajectories of a pendulum, and the preferred ones alone, written before the arena `preferred`."""


def swing(world: gymnasium.Env, number: int) -> StoredEpisode:
    """Play a hundred actions by a hand that would swing a pendulum up, times a gain of its own from -1 to 0.4."""
    luck, (shown, _) = np.random.default_rng((number, 1)), world.reset(seed=number)  # not the beginning's numbers
    gain, seen, acts, paid = luck.uniform(-1, 0.4), [shown], [], []
    for _ in range(100):
        across, up, speed = float(shown[1]), float(shown[0]), float(shown[2])
        energy = 2 * np.sign(speed or 1.0) * np.sign(5 - speed**2 / 6 - 5 * up)
        hand = -12 * np.arctan2(across, up) - 3 * speed if up > 0.85 else energy
        force = np.clip(gain * np.clip(hand, -2, 2) + 0.1 * luck.normal(), -2, 2)
        shown, reward, *_ = world.step(np.array([force], np.float32))
        seen.append(shown)
        acts.append([force])
        paid.append(float(reward))
    return StoredEpisode(np.stack(seen), np.array(acts, np.float32), np.array(paid), terminated=False)


@cache
def store_swings() -> None:
    """Write a hundred trajectories of hands of all gains in pairs, and the better one of each pair."""
    PAIRED.parent.mkdir(parents=True, exist_ok=True)
    world = gymnasium.make("Pendulum-v1")
    rows = [swing(world, number) for number in range(100)]
    write(PAIRED, rows, [number // 2 for number in range(100)])
    write(PREFERRED, [max(pair, key=lambda row: row.total) for pair in zip(rows[::2], rows[1::2], strict=True)])


def greedy_return(folder: Path) -> float:
    """Return the mean return of the final evaluation, whose actions are the likeliest."""
    return float(json.loads((folder / "summary.json").read_text())["after"]["eval/greedy_reward"])


def asked(target: float) -> dict[str, Any]:
    """Return the changes of a run whose policy is asked for a return."""
    return {"task": {"target": target}, "model": {"name": "decision_transformer"}}


BOTH = CARTS.with_name("paired_carts.jsonl")
"""Pairs of a good hand's trajectory and one by chance, written before the arena `two hands`."""


@cache
def store_hands() -> None:
    """Write fifty pairs."""
    BOTH.parent.mkdir(parents=True, exist_ok=True)
    world = gymnasium.make("CartPole-v1")
    rows = [cart(world, number, good=number % 2 == 0) for number in range(100)]
    write(BOTH, rows, [number // 2 for number in range(100)])


CHOICES = CARTS.with_name("choices.jsonl")
"""Trajectories through four places, each right in one of them at most, written before the arena `stitched`."""


@cache
def store_choices() -> None:
    """Write the trajectories."""
    CHOICES.parent.mkdir(parents=True, exist_ok=True)
    choices.store(CHOICES)


STORED: dict[str, dict[str, Any]] = {
    "stitched": {
        "task": {"name": f"trajectories:{CHOICES}", "of": f"env:{choices.__file__}:Choices"},
        "model": {"name": "mlp", "settings": {"hidden": [8]}},
        "batch": {"prompts": 20, "group_size": 1, "epochs": 2},
        "optim": {"schedule": "constant"},
        "eval": {"every": 0, "final_prompts": 16},
        "environment": {"workers": 0},
        "steps": 10,
        "before": store_choices,
        "measure": greedy_return,
        "methods": {
            "sft": ("sft", (3e-2, 1e-1)),
            "weighted_bc": ("weighted_bc", (3e-2, 1e-1)),
            "f_dvl": ({"name": "f_dvl", "gamma": 0.9, "size": 80}, (3e-2, 1e-1)),
            "odice": ({"name": "odice", "gamma": 0.9}, (3e-2, 1e-1)),
        },
    },
    "asked": {
        "task": {"name": f"trajectories:{CARTS}", "of": {"name": "control:CartPole-v1", "turns": 200}},
        "model": {"name": "mlp", "settings": {"hidden": [32]}},
        "batch": {"prompts": 20, "group_size": 1, "minibatches": 1},
        "optim": {"schedule": "constant"},
        "eval": {"every": 0, "final_prompts": 16},
        "steps": 100,
        "before": store_carts,
        "measure": greedy_return,
        "methods": {
            "sft": ("sft", (3e-3, 1e-2)),
            "weighted_bc": ("weighted_bc", (3e-3, 1e-2)),
            "weights 0": ({"name": "mo_dt", "observation": 0.0, "to_go": 0.0}, (3e-3, 1e-2), asked(200.0)),
            "weights 0, asked for 20": (
                {"name": "mo_dt", "observation": 0.0, "to_go": 0.0},
                (3e-3,),
                asked(20.0),
            ),
            "mo_dt": ("mo_dt", (3e-3, 1e-2), asked(200.0)),
            "mo_dt, weights 0.1": (
                {"name": "mo_dt", "observation": 0.1, "to_go": 0.1},
                (3e-3, 1e-2),
                asked(200.0),
            ),
        },
    },
    "two hands": {
        "task": {"name": f"trajectories:{BOTH}", "of": {"name": "control:CartPole-v1", "turns": 200}},
        "model": {"name": "mlp", "settings": {"hidden": [32]}},
        "batch": {"prompts": 10, "group_size": 2, "minibatches": 1},
        "optim": {"schedule": "constant"},
        "eval": {"every": 0, "final_prompts": 16},
        "steps": 100,
        "before": store_hands,
        "measure": greedy_return,
        "methods": {
            "sft": ("sft", (3e-3, 1e-2)),
            "oppo": ("oppo", (3e-3, 1e-2), {"model": {"name": "hindsight", "settings": {"window": 1}}}),
        },
    },
    "preferred": {
        "task": {"name": f"trajectories:{PAIRED}", "of": {"name": "control:Pendulum-v1", "turns": 100}},
        "model": {"name": "mlp", "settings": {"hidden": [32]}},
        "batch": {"prompts": 10, "group_size": 2, "minibatches": 1},
        "optim": {"schedule": "constant"},
        "eval": {"every": 0, "final_prompts": 16},
        "environment": {"workers": 0},
        "steps": 150,
        "before": store_swings,
        "measure": greedy_return,
        "methods": {
            "sft": ("sft", (3e-3, 1e-2)),
            "preferred_half": (
                "sft",
                (3e-3, 1e-2),
                {"task": {"name": f"trajectories:{PREFERRED}"}, "batch": {"prompts": 20, "group_size": 1}},
            ),
            "oppo": ("oppo", (3e-3, 1e-2), {"model": {"name": "hindsight", "settings": {"window": 1}}}),
        },
    },
}
"""The arenas by name, as `control.ARENAS`."""
