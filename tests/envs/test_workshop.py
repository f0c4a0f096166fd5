"""A workshop: things that are unlocked one after the other, and the last unlocking that is shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grouprl import InputError
from grouprl.envs.construction.workshop import LEFT, RIGHT, USE, Workshop
from grouprl.records.examples import Example
from grouprl.records.unlocking import FROM, NOW, TO, LastUnlock

ANY = Example("any", "")


def placed(order: list[int], at: int = 0, **settings: Any) -> Workshop:
    """A workshop whose thing k stands at `order[k]`."""
    world = Workshop(**settings)
    world.reset(ANY, 0)
    world._place_k, world._at = np.array(order), at
    return world


def test_a_thing_pays_once_and_only_after_all_that_it_needs() -> None:
    """Wood, water, table, pickaxe and ore stand in their order; the table is tried before there is wood."""
    world = placed([0, 1, 2, 3, 4], at=2)
    acts = [USE, LEFT, LEFT, USE, USE, RIGHT, RIGHT, USE, RIGHT, USE, LEFT, LEFT, USE, RIGHT, RIGHT, USE, RIGHT, USE]
    steps = [world.step(act) for act in acts]
    assert [step.reward for step in steps] == [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1]
    assert [step.terminated for step in steps] == [False] * 17 + [True]
    assert world.score() == {"correct": 1.0}


def test_the_observation_by_hand() -> None:
    world = placed([2, 0, 1], at=0, needs=((), (0,), ()))
    seen = world.step(RIGHT).observation.values[NOW]
    assert seen.tolist() == [0.5, -0.5, 0, 0, 0, 1, 0, 0, 0]
    assert world.step(USE).observation.values[NOW].tolist() == [0.5, -0.5, 0, 0, 0, 1, 0, 0, 1]


def test_the_last_unlocking_is_shown_until_the_next_one() -> None:
    world = placed([0, 1], needs=((), ()))
    shown = [world.step(act).observation.values for act in (RIGHT, USE, LEFT, USE)]
    assert not shown[0][FROM].any()
    assert not shown[0][TO].any()
    for kept in shown[1:3]:
        assert np.array_equal(kept[FROM], shown[0][NOW])
        assert np.array_equal(kept[TO], shown[1][NOW])
    assert np.array_equal(shown[3][FROM], shown[2][NOW])
    assert np.array_equal(shown[3][TO], shown[3][NOW])


def test_pay_up_to_the_limit_unlocks_nothing() -> None:
    last, seen = LastUnlock(above=0.1), np.ones(2, np.float32)
    last.begin(seen)
    assert not last.after(2 * seen, 0.1)[TO].any()
    assert last.after(3 * seen, 0.2)[FROM].tolist() == [2, 2]
    assert not last.begin(seen)[TO].any()


def test_without_a_memory_the_present_alone_is_shown() -> None:
    world = Workshop(memory=False)
    assert world.spaces.observation.shape == (15,)  # type: ignore[union-attr]
    assert world.reset(ANY, 1).values.shape == (15,)
    assert world.step(LEFT).observation.values.shape == (15,)


def test_seeds_draw_orders_and_episodes_end_after_their_steps() -> None:
    orders = {tuple(Workshop().reset(ANY, seed).values[NOW]) for seed in range(20)}
    assert len(orders) > 15
    world = Workshop(steps=3)
    world.reset(ANY, 0)
    assert [world.step(LEFT).terminated for _ in range(3)] == [False, False, True]
    with pytest.raises(InputError, match="are taken during an episode"):
        world.step(LEFT)


@pytest.mark.parametrize("settings", [{"needs": ((0,), ())}, {"needs": ((),)}, {"steps": 0}])
def test_what_cannot_be_played_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="needs only earlier ones"):
        Workshop(**settings)
