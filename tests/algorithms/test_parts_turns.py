"""Credit for turns: discounted returns, anchor states, and where they are plain group baselines."""

from __future__ import annotations

import pytest
import torch

import grouprl
from grouprl import InputError
from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.advantage.turn_credit import TurnRelative
from grouprl.algorithms.turn_returns import has_turn, turn_returns
from small import near, small


def episodes(**changes):
    """Three episodes of 2, 1 and 2 turns; a hole before the second turns; state 0 begins them all."""
    fields = {
        "mask_bt": torch.tensor([[True, False, True], [True, False, False], [True, False, True]]),
        "turn_bt": torch.tensor([[0, -1, 1], [0, -1, -1], [0, -1, 1]]),
        "turn_reward_bs": [[0.0, 2.0], [1.0, 7.0], [0.0, 0.0]],
        "state_bs": torch.tensor([[0, 0], [0, 5], [0, 4]]),
    }
    return small([2, 1, 0], [3, 3, 3], **{**fields, **changes})


def test_returns_skip_turns_that_a_row_does_not_have():
    batch = episodes()
    there = has_turn(batch, 2, "a test")
    assert there.tolist() == [[True, True], [True, False], [True, True]]
    near(turn_returns(batch, there, 0.5, "a test"), [[1.0, 2.0], [1.0, 0.0], [0.0, 0.0]])
    near(turn_returns(batch, there, 0.0, "a test"), [[0.0, 2.0], [1.0, 0.0], [0.0, 0.0]])


def test_what_is_earned_at_the_end_belongs_to_the_last_turn():
    batch = episodes(turn_reward_bs=[[0.0, 0.0]] * 3)
    near(turn_returns(batch, has_turn(batch, 2, "a test"), 0.5, "a test"), [[1.0, 2.0], [1.0, 0.0], [0.0, 0.0]])


def test_a_state_that_comes_twice_in_one_episode_counts_twice():
    """State 0: returns 1, 2 (first episode, both turns), 1 and 0: mean 1. State 4 occurs once."""
    adv = TurnRelative(gamma=0.5, omega=1.0)(episodes())
    near(adv, [[1.0, 0.0, 2.0], [0.0, 0.0, 0.0], [-2.0, 0.0, -1.0]])


def test_states_without_a_key_and_of_other_groups_are_not_compared():
    unknown = episodes(state_bs=torch.full((3, 2), -1))
    near(TurnRelative()(unknown), Relative(scale="none")(unknown))
    apart = episodes().replace(group_b=torch.tensor([0, 1, 2]))
    near(TurnRelative(gamma=0.5)(apart), [[-0.5, 0.0, 0.5], [0.0] * 3, [0.0] * 3])


def test_one_turn_from_one_state_is_the_group_baseline_times_one_plus_omega():
    batch = small(
        [1, 0, 0, 3], [2, 1, 2, 1], turn_bt=torch.zeros(4, 2, dtype=torch.int64),
        turn_reward_bs=[[1.0], [0.0], [0.0], [3.0]], state_bs=torch.zeros(4, 1, dtype=torch.int64),
    )  # fmt: skip
    for scale in ("none", "sample_std"):
        near(TurnRelative(omega=0.5, scale=scale)(batch), 1.5 * Relative(scale=scale)(batch))


def test_states_that_never_repeat_leave_grpo():
    batch = episodes(state_bs=torch.arange(6).view(3, 2))
    method = grouprl.method("gigpo", scale="sample_std")
    near(method.advantage(batch), Relative()(batch))


def test_rows_outside_the_statistics_do_not_count():
    batch = episodes().replace(stat_b=torch.tensor([True, False, True]))
    adv = TurnRelative(gamma=0.5)(batch)
    near(adv, [[1.0, 0.0, 2.0], [0.0, 0.0, 0.0], [-2.0, 0.0, -1.0]])


def test_more_turns_than_rewards_are_an_error():
    with pytest.raises(InputError, match="turn_bt has turn 1, but the fields of turns have only 1"):
        TurnRelative()(episodes(turn_reward_bs=[[0.0]] * 3, state_bs=torch.zeros(3, 1, dtype=torch.int64)))
