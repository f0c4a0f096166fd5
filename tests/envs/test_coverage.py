"""A walk that is paid for new cells, and the method that credits each step with what is still gained."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from grouprl import InputError
from grouprl.envs.construction.coverage import CoverageWalk
from grouprl.records.examples import Example


def walked(world: CoverageWalk, moves: tuple[int, ...]) -> list[float] | None:
    """Return what each move pays; None if one is not legal."""
    world.reset(Example("walk", {}), 0)
    paid = []
    for move in moves:
        if not world.legal()[move]:
            return None
        paid.append(float(world.step(move).reward))
    return paid


def test_a_cell_pays_once() -> None:
    assert walked(CoverageWalk(), (0, 1, 1, 1, 0)) == [1.0, 0.0, 1.0, 1.0, 0.0]


def test_ten_steps_on_the_line_gain_eight_at_most_and_seven_straight_on() -> None:
    world = CoverageWalk()
    gained = (walked(world, moves) for moves in itertools.product((0, 1), repeat=10))
    assert max(sum(paid) for paid in gained if paid is not None) == 8.0
    assert sum(walked(world, (1,) * 7) or ()) == 7.0


def test_gains_diminish_in_any_order() -> None:
    """Submodular: the same move after more has been covered never gains more."""
    world = CoverageWalk(side=(3, 3), start=(1, 1), steps=4)
    short, long = walked(world, (0,)), walked(world, (1, 0, 0))
    assert short == [1.0]
    assert long == [1.0, 0.0, 1.0]
    assert walked(world, (0, 1, 0)) == [1.0, 0.0, 0.0]


def test_place_time_and_where_asked_the_covered_cells_are_shown() -> None:
    world = CoverageWalk(side=(2, 2), start=(0, 0), steps=3, history=True)
    world.reset(Example("walk", {}), 0)
    shown = world.step(3).observation
    assert shown.values.tolist() == [0, 1, 1, 1, 1, 0, 0]  # type: ignore[union-attr]
    assert world.legal().tolist() == [False, True, True, False]
    plain = CoverageWalk(side=(2, 2), start=(0, 0), steps=3).reset(Example("walk", {}), 0)
    assert np.asarray(plain.values).tolist() == [0, 0, 0]


def test_what_leaves_the_grid_or_begins_outside_is_refused() -> None:
    world = CoverageWalk(side=(2,), start=(0,), steps=1)
    world.reset(Example("walk", {}), 0)
    with pytest.raises(InputError, match="not legal"):
        world.step(0)
    world.step(1)
    with pytest.raises(InputError, match="not legal"):
        world.step(0)
    with pytest.raises(InputError, match="begins inside"):
        CoverageWalk(side=(2,), start=(2,))
