"""PixelThink's budget: hand values of its paper, and what it is measured on."""

from __future__ import annotations

import pytest
import torch

import grouprl
from grouprl.algorithms.reward_transform.papers.length_allowance import LengthAllowance, difficulty, unsureness
from grouprl.core.errors import InputError


def batch(
    lengths: list[int], correct: list[bool], groups: list[int] | None = None, entropy: float = 2.0
) -> grouprl.Batch:
    rows, longest = len(lengths), max(lengths)
    mask_bt = torch.arange(longest)[None, :] < torch.tensor(lengths)[:, None]
    correct_b = torch.tensor(correct)
    return grouprl.Batch(
        mask_bt=mask_bt,
        group_b=torch.tensor(groups or [0] * rows),
        reward_b=correct_b.double() * 3,
        correct_b=correct_b,
        entropy_bt=torch.where(mask_bt, entropy, 99.0).double(),
    )


@pytest.mark.parametrize(("length", "factor"), [(96, 1), (346, 0.5), (596, 0), (900, 0), (10, 1)])
def test_an_easy_prompt_has_the_short_budget(length: int, factor: float) -> None:
    found = LengthAllowance()(batch([length, length], [True, True]))
    assert found.reward_b.tolist() == pytest.approx([3 * factor] * 2)


@pytest.mark.parametrize(("length", "factor"), [(306, 1), (556, 0.5), (806, 0)])
def test_a_hard_prompt_has_more_for_each_nat(length: int, factor: float) -> None:
    """b = 256 + 25 · 2 where half of the completions are wrong: d = 5.5."""
    found = LengthAllowance()(batch([length, length], [True, False]))
    assert found.reward_b.tolist() == pytest.approx([3 * factor, 0])


def test_prompts_in_the_middle_keep_their_rewards() -> None:
    """A third wrong: d = 4."""
    assert LengthAllowance()(batch([5000, 1, 1], [True, True, False])).reward_b.tolist() == [3, 3, 0]


def test_difficulty_and_entropy_are_those_of_the_group() -> None:
    made = batch([4, 2, 3, 1], [True, False, True, True], groups=[0, 0, 1, 1])
    assert difficulty(made).tolist() == pytest.approx([5.5, 5.5, 1, 1])
    assert unsureness(made, "test").tolist() == pytest.approx([2] * 4), "what lies outside the mask counts"


def test_the_bounds_are_in_order() -> None:
    with pytest.raises(InputError, match=r"hard=3 is below easy=3\.5"):
        grouprl.compose({"base": "grpo", "reward_transform": [{"part": "length_allowance", "hard": 3}]})
