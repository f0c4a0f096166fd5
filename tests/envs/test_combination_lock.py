"""A lock that opens to one combination."""

from __future__ import annotations

import numpy as np
import pytest

from grouprl import InputError
from grouprl.envs.construction.combination_lock import CombinationLock, dialled, expert_episodes, random_episodes


def test_the_combination_is_paid_at_the_end_and_anything_else_nothing() -> None:
    lock = CombinationLock(horizon=3, numbers=4)
    found = dialled(lock, lock.combination)
    assert found.rewards.tolist() == [0, 0, 1]
    assert np.asarray(found.observations).tolist() == [*np.eye(6)[:3].tolist(), [0] * 6]
    wrong = [(lock.combination[0] + 1) % 4, *lock.combination[1:]]
    jammed = dialled(lock, wrong)
    assert jammed.rewards.sum() == 0
    assert np.asarray(jammed.observations).argmax(1)[:3].tolist() == [0, 4, 5]
    assert np.asarray(jammed.observations)[-1].sum() == 0


def test_the_key_is_the_combination() -> None:
    assert CombinationLock(key=3).combination == CombinationLock(key=3).combination
    assert CombinationLock(key=3).combination != CombinationLock(key=4).combination


def test_an_expert_opens_it_often_and_chance_does_not() -> None:
    """Ten places: each is dialled by chance with 1/10, and then right with 1/10, so that (1 - 0.09)^10 = 0.389 open."""
    shares = [float(np.mean([each.correct for each in episodes()])) for episodes in (expert_episodes, random_episodes)]
    assert shares[0] == pytest.approx(0.389, abs=0.08)
    assert shares[1] == 0
    assert not any(each.correct for each in random_episodes(CombinationLock(2, 2)))


def test_what_is_no_number_is_refused() -> None:
    lock = CombinationLock(horizon=1, numbers=2)
    with pytest.raises(InputError, match="are dialled during an episode"):
        lock.step(0)
    dialled(lock, [0])
    with pytest.raises(InputError, match="are dialled during an episode"):
        lock.step(0)
    with pytest.raises(InputError, match="two numbers"):
        CombinationLock(numbers=1)
