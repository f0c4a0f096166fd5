"""What the gaps of a group's scores say, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from grouprl.rollout.pair_gaps import gap_measures


def measured(rewards, scores, texts):
    return gap_measures(np.array(rewards, float), np.subtract.outer(scores, scores), texts)


def test_a_pair_by_hand():
    """The gap is 1 - 3 = -2; the worse completion is longer, has the mark and the higher score."""
    found = measured([1, 0], [1, 3], ["abc", "**ab**cd"])
    assert found["pair_loss"] == pytest.approx(math.log(1 + math.exp(2)))
    assert found["pair_confidence"] == pytest.approx(1 / (1 + math.exp(-2)))
    assert [found[name] for name in ("longer_preferred", "longer_better", "marked_preferred", "marked_better")] == [
        1,
        0,
        1,
        0,
    ]


def test_a_list_counts_each_pair_of_different_rewards_once():
    """Of three with rewards 2, 1, 1 there are two pairs with gaps 2 and -1; in the second alone lengths differ."""
    found = measured([2, 1, 1], [2, 0, 3], ["ab", "cd", "efg"])
    assert found["pair_loss"] == pytest.approx((math.log(1 + math.exp(-2)) + math.log(1 + math.e)) / 2)
    assert (found["longer_preferred"], found["longer_better"]) == (1, 0)
    assert math.isnan(found["marked_better"])


def test_an_equal_score_prefers_neither():
    found = measured([1, 0], [1, 1], ["abc", "a"])
    assert (found["longer_preferred"], found["longer_better"]) == (0, 1)
    assert found["pair_loss"] == pytest.approx(math.log(2))


def test_a_group_without_pairs_measures_nothing():
    assert all(math.isnan(value) for value in measured([1, 1], [0, 2], ["a", "b"]).values())
