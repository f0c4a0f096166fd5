"""The effective horizon: by hand in small worlds, longer in longer corridors, and a prediction of what GRPO learns."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fork_in_the_road
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.envs.construction.arms import Arms
from grouprl.envs.construction.corridor import Corridor
from grouprl.envs.construction.fleet import DeliveryFleet
from grouprl.evaluation.effective_horizon import Look, effective_horizon
from grouprl.records.examples import Example
from grouprl.training.loop import train

HERE = Example("one", "", {"seed": 1})
FORK = fork_in_the_road.Fork


def test_one_choice_needs_one_look() -> None:
    found = effective_horizon(Arms, HERE, best=1.0, turns=1)
    assert found.look == Look(1, 1)
    assert found.steps == 1
    assert found.actions == 3


def test_what_random_continuations_undersell_is_found_one_step_deeper() -> None:
    """The sure side pays 0.5. The other leads to three doors: random, it is worth a third of how many of them pay 1."""
    poor = effective_horizon(lambda: FORK(1), HERE, best=1.0, turns=2, most=256)
    assert poor.look == Look(2, 1)
    assert poor.steps == 2
    assert poor.reached[Look(1, 256)] == 0  # 1/3 < 0.5, the surer the more is sampled
    rich = effective_horizon(lambda: FORK(2), HERE, best=1.0, turns=2, most=256)
    assert rich.reached[Look(1, 256)] == 1  # 2/3 > 0.5
    assert rich.steps <= 2


def test_longer_corridors_have_longer_horizons() -> None:
    """A random walk of three ways gets to the turn of a corridor of length n in one of 3^(n+1) cases."""
    steps = [
        effective_horizon(lambda n=n: Corridor(n), HERE, best=1.0, turns=5, depth=1, most=64, repeats=16).steps
        for n in (1, 2, 3)
    ]
    assert steps == sorted(steps)
    assert steps[0] < steps[2] < math.inf


def test_none_is_enough_where_nothing_is_ever_found() -> None:
    found = effective_horizon(lambda: Corridor(8), HERE, best=1.0, turns=10, depth=1, most=2)
    assert found.look is None
    assert found.steps == math.inf


def test_it_repeats_itself_and_what_cannot_be_looked_at_is_told() -> None:
    looks = [effective_horizon(lambda: Corridor(2), HERE, best=1.0, turns=4, depth=1, most=8) for _ in range(2)]
    assert looks[0] == looks[1]
    with pytest.raises(InputError, match="must be Discrete"):
        effective_horizon(lambda: DeliveryFleet(2, 1), HERE, best=0.0, turns=4)
    with pytest.raises(InputError, match="Raise best"):
        effective_horizon(Arms, HERE, best=0.5, turns=1)
    with pytest.raises(InputError, match="at least 1"):
        effective_horizon(Arms, HERE, best=1.0, turns=0)


@pytest.mark.parametrize("doors", [1, 2])
def test_grpo_learns_a_fork_of_horizon_two_though_one_step_finds_only_one_of_them(tmp_path: Path, doors: int) -> None:
    """The doors are learned while the first choice still falls on either side: k = 1 alone says too little."""
    settings: dict[str, Any] = {
        "task": {"name": f"env:{fork_in_the_road.__file__}:Fork", "config": {"paying": doors}, "turns": 2},
        "model": {"name": "mlp", "settings": {"hidden": [8]}},
        "method": "grpo",
        "steps": 25,
        "batch": {"prompts": 2, "group_size": 32},
        "optim": {"lr": 0.05, "schedule": "constant"},
        "eval": {"every": 0, "final_prompts": 2},
        "environment": {"workers": 0},
        "run": {"threads": 1},
    }
    train(parse_config(settings), folder=tmp_path / "run", console=Console(quiet=True))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["after"]["eval/greedy_reward"] == 1.0
    found = effective_horizon(lambda: FORK(doors), HERE, best=1.0, turns=2, most=256)
    assert found.steps <= 2
    assert found.reached[Look(1, 256)] == (doors == 2)
