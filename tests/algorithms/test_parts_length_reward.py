"""Length rewards by hand: who is compared with whom, and what stays as it is."""

from __future__ import annotations

import math

import pytest
import torch

from grouprl.algorithms.outcome import right, right_share
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.reward_transform.papers.length_reward import (
    CosineLength,
    LengthWhenSolved,
    MinMaxLength,
    RightLengthScore,
    ShortestRight,
    relative_length,
)
from grouprl.core.errors import InputError
from small import near, small


def test_right_is_the_raw_outcome():
    batch = small([1.0, -1.0, 0.5, 0.0])
    assert right(batch).tolist() == [True, False, True, False]
    assert right(batch.replace(correct_b=torch.tensor([False, True, True, False]))).tolist() == [
        False,
        True,
        True,
        False,
    ]
    shaped = batch.replace(raw_reward_b=batch.reward_b, reward_b=-batch.reward_b)
    assert right(shaped).tolist() == [True, False, True, False]
    near(right_share(small([1, 0, 1, 1], groups=[0, 0, 1, 1])), [0.5, 0.5, 1, 1])


def test_shares_count_only_rows_in_the_statistics():
    batch = small([1, 0, 0]).replace(stat_b=torch.tensor([True, True, False]))
    near(right_share(batch), [0.5] * 3)


# --- GRPO-LEAD ------------------------------------------------------------------------------------------------------


def test_lead_s_numbers():
    """Correct completions of 100, 200 and 300 tokens get 1.0513, 1 and 0.9512."""
    got = RightLengthScore()(small([1, 1, 1, 0], [100, 200, 300, 50])).reward_b
    near(got, [math.exp(0.05), 1, math.exp(-0.05), -1], 1e-8)


def test_a_single_right_completion_keeps_its_reward():
    near(RightLengthScore()(small([1, 0, 0], [9, 1, 2])).reward_b, [1, -1, -1])


def test_lengths_of_wrong_completions_do_not_count():
    a, b = (RightLengthScore()(small([1, 1, 0], [3, 5, n])).reward_b for n in (1, 9))
    near(a, b)


def test_equal_lengths_are_not_noise():
    near(relative_length(small([1, 1, 1], [3, 3, 3])), [0, 0, 0])


def test_short_groups_can_be_left_alone():
    batch = small([1, 1, 1, 1], [1, 2, 6, 100], groups=[0, 0, 0, 0])
    near(RightLengthScore(free_length=3)(batch).reward_b, [1, 1, 1, 1])
    assert not torch.equal(RightLengthScore(free_length=2)(batch).reward_b, batch.reward_b)


# --- ConciseR -------------------------------------------------------------------------------------------------------


def test_length_counts_once_all_are_right():
    batch = small([1, 1, 1, 0], [2, 4, 2, 4], groups=[0, 0, 1, 1], max_length=8)
    near(LengthWhenSolved(coef=2.0)(batch).reward_b, [1 + 2 * 0.75, 1 + 2 * 0.5, 1, 0])


def test_a_limit_is_needed():
    for part in (LengthWhenSolved(), CosineLength()):
        with pytest.raises(InputError, match="max_length"):
            part(small([1, 0]))


# --- the model's own shortest ----------------------------------------------------------------------------------------


def test_the_shortest_right_completion_gets_the_whole_bonus():
    near(ShortestRight(coef=1.0)(small([1, 1, 0], [4, 8, 1])).reward_b, [2, 1.5, 0])


def test_wrong_completions_change_nothing_for_right_ones():
    got = ShortestRight()(small([1, 1, 0, 0, 0], [4, 8, 1, 2, 3])).reward_b
    near(got[:2], ShortestRight()(small([1, 1], [4, 8])).reward_b)
    near(ShortestRight()(small([0, 0], [4, 8])).reward_b, [0, 0])


# --- cosine and Kimi --------------------------------------------------------------------------------------------------


def test_the_cosine_at_its_corners():
    lengths = [1, 500, 1000, 1, 500, 1000]
    got = CosineLength()(small([1, 1, 1, 0, 0, 0], lengths, max_length=1000)).reward_b
    near(got, [1, 0.75, 0.5, -1, -0.75, -0.5], 1e-5)


def test_the_cosine_does_not_rise_again_beyond_the_limit():
    near(CosineLength()(small([1, 0], [20, 20], max_length=10)).reward_b, [0.5, -0.5])


def test_min_max():
    near(MinMaxLength()(small([1, 1, 0, 0], [1, 3, 2, 1])).reward_b, [1.5, 0.5, 0, 0])
    near(MinMaxLength(coef=2.0)(small([1, 0], [1, 3])).reward_b, [2, -1])
    near(MinMaxLength()(small([1, 0], [3, 3])).reward_b, [1, 0])


@pytest.mark.parametrize("cls", [LengthWhenSolved, ShortestRight, MinMaxLength])
def test_no_coefficient_no_effect(cls):
    assert cls(coef=0.0).idle(RunFacts())
    assert not cls(coef=0.5).idle(RunFacts())
    batch = small([1, 1, 1], [1, 2, 3], max_length=5)
    near(cls(coef=0.0)(batch).reward_b, batch.reward_b)
