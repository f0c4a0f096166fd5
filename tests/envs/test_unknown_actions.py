"""Actions that a world does not have: none stands for another, as the last one would for -1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grouprl.core.errors import InputError
from grouprl.envs.construction import PROBLEMS
from grouprl.envs.construction.arms import Arms
from grouprl.envs.construction.bandit_blocks import BanditBlock
from grouprl.envs.construction.combination_lock import CombinationLock
from grouprl.envs.construction.corridor import Corridor
from grouprl.envs.construction.coverage import CoverageWalk
from grouprl.envs.construction.hypergrid import HyperGrid
from grouprl.envs.construction.inventory import Inventory
from grouprl.envs.construction.problem import solved
from grouprl.envs.construction.walled_grid import WalledGrid
from grouprl.envs.construction.workshop import Workshop
from grouprl.protocols import Discrete
from grouprl.records.examples import Example

WORLDS = (
    Arms, BanditBlock, CombinationLock, Corridor, CoverageWalk, HyperGrid, Inventory, WalledGrid, Workshop
)  # fmt: skip


@pytest.mark.parametrize("world", WORLDS)
def test_an_unknown_action_changes_nothing(world: Any) -> None:
    one, other = world(), world()
    for each in (one, other):
        each.reset(Example("x", "", {"seed": 3}), 3)
    space = one.spaces.action
    assert isinstance(space, Discrete)
    for action in (-1, space.count):
        with pytest.raises(InputError, match=str(action)):
            one.step(action)
    after = [each.step(0) for each in (one, other)]
    shown = [str(each.observation.values) for each in after]
    assert shown[0] == shown[1]
    assert after[0].reward == after[1].reward


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_a_node_below_0_is_not_the_last_one(name: str) -> None:
    problem = PROBLEMS[name](4)
    instance = problem.sample(np.random.default_rng(0))
    for node in (-1, problem.nodes):
        with pytest.raises(InputError, match=f"node {node} after"):
            solved(problem, instance, [node])
