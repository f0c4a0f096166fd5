"""The corridor: which turn is paid is named at its beginning alone."""

from __future__ import annotations

import numpy as np
import pytest

from grouprl.core.errors import InputError
from grouprl.envs import ArrayObservation
from grouprl.envs.construction.corridor import Corridor
from grouprl.records.examples import Example
from grouprl.testing import check_environment

LEFT, RIGHT, ON = 0, 1, 2


def walked(side: int, *actions: int, length: int = 2) -> tuple[list[list[float]], list[float], list[bool]]:
    environment = Corridor(length)
    seen = [environment.reset(Example("one", "", {"seed": side}), 7)]
    steps = [environment.step(action) for action in actions]
    shown = [*seen, *(step.observation for step in steps)]
    assert all(isinstance(each, ArrayObservation) for each in shown)
    return (
        [list(map(float, np.asarray(s.values))) for s in shown],
        [s.reward for s in steps],
        [s.terminated for s in steps],
    )  # type: ignore[union-attr]


@pytest.mark.parametrize(("side", "named"), [(LEFT, -1.0), (RIGHT, 1.0)])
def test_the_side_is_named_once_and_paid_at_the_junction(side: int, named: float) -> None:
    seen, paid, ended = walked(side, ON, ON, side)
    assert seen == [[named, 0], [0, 0], [0, 1], [0, 1]]
    assert paid == [0, 0, 1]
    assert ended == [False, False, True]
    assert walked(side, ON, ON, 1 - side)[1] == [0, 0, 0]


def test_a_turn_before_the_junction_and_a_step_beyond_it_end_it_unpaid() -> None:
    assert walked(LEFT, LEFT)[1:] == ([0], [True])
    assert walked(LEFT, ON, ON, ON)[1:] == ([0, 0, 0], [False, False, True])


def test_it_keeps_the_rules_of_environments() -> None:
    check_environment(Corridor, Example("one", "", {"seed": 1}), [ON, LEFT], spaces=Corridor().spaces)
    with pytest.raises(InputError, match="over"):
        Corridor().step(ON)
    with pytest.raises(InputError, match="one step or more"):
        Corridor(0)
