"""Preferences between episodes: weights of turns, segments, pairs, and what they leave alone."""

from __future__ import annotations

import math

import pytest
import torch

import grouprl
from batches import outcome, random_case
from grouprl.algorithms.score.papers.turns import early_weights, segments
from grouprl.algorithms.turn_returns import same_actions
from small import f64, near, small


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [(0.7, [1, 0.6052, 0.3289, 0.1354]), (1.0, [1, 0.75, 0.5, 0.25]), (0.0, [1, 0, 0, 0])],
)
def test_early_turns_weigh_more(gamma, expected):
    there = torch.ones(1, 4, dtype=torch.bool)
    near(early_weights(there, gamma), [expected], atol=1e-4)


def test_turns_that_are_not_there_have_no_weight():
    there = torch.tensor([[True, False, True], [True, False, False]])
    near(early_weights(there, 1.0), [[1, 0, 0.5], [1, 0, 0]])


def pairs(method, rewards, groups, shift):
    width = len(rewards)
    batch = small(
        rewards, [2] * width, groups, turn_bt=torch.tensor([[0, 1]] * width), ref_bt=[[-1.0, -1.0]] * width,
        state_bs=torch.arange(2 * width).view(width, 2), token_bt=torch.arange(2 * width).view(width, 2),
    )  # fmt: skip
    logp_bt = (batch.old_bt + f64(shift)).requires_grad_()
    value = method.loss(logp_bt, method.prepare(batch)).value
    (grad_bt,) = torch.autograd.grad(value, logp_bt)
    return float(value.detach()), grad_bt


@pytest.mark.parametrize("name", ["dmpo", "sdpo_segment"])
def test_the_loss_is_the_mean_over_pairs(name):
    """Three rewards are three pairs; where all agree there is none, and that group has no gradient."""
    method = grouprl.method(name, beta=1.0)
    value, grad_bt = pairs(method, [2, 1, 0, 1, 1], [0, 0, 0, 1, 1], [[0.0] * 2] * 5)
    assert value == pytest.approx(3 / 5 * math.log(2))
    assert not grad_bt[3:].any()
    near(grad_bt[1], [0, 0])
    assert float(grad_bt[0, 0]) < 0 < float(grad_bt[2, 0])


def test_margins_are_bounded_and_satisfied_pairs_teach_nothing():
    method = grouprl.method("sdpo_segment", beta=10.0)
    value, grad_bt = pairs(method, [1, 0], [0, 0], [[500.0, 500.0], [-500.0, -500.0]])
    assert value == pytest.approx(0, abs=1e-12)
    assert grad_bt.abs().max() < 1e-12


def segment(turns=None, **changes):
    fields = {
        "turn_bt": torch.tensor([[0, 1, 2, 3], [0, 1, 2, -1]]),
        "token_bt": torch.tensor([[5, 6, 7, 8], [5, 9, 7, 0]]),
        "state_bs": torch.tensor([[0, 1, 2, 3], [0, 1, 4, -1]]),
    }
    batch = small([1, 0], [4, 3], **{**fields, **changes})
    there = torch.tensor([[True] * 4, [True, True, True, False]])
    first, last = segments(same_actions(batch, there, "a test"), batch.state_bs, there, turns)
    assert torch.equal(first, first.T)
    assert torch.equal(last, last.T)
    return int(first[0, 1]), int(last[0, 1])


def test_segments_begin_where_episodes_part_and_end_with_the_shorter():
    assert segment() == (1, 3)
    assert segment(turns=1) == (1, 2)
    assert segment(turns=9) == (1, 3)
    assert segment(state_bs=torch.tensor([[7, 1, 2, 3], [0, 1, 4, -1]])) == (0, 3)
    same = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 0]])
    assert segment(token_bt=same, state_bs=torch.tensor([[0, 1, 2, 3], [0, 1, 2, -1]])) == (3, 3)


def test_what_two_episodes_share_has_no_gradient():
    case = random_case(2, (2,), rewards="mixed", holes=False, equal_lengths=True)
    same = torch.zeros_like(case.batch.token_bt)
    batch = case.batch.replace(token_bt=same, state_bs=torch.zeros_like(case.batch.state_bs), stat_b=None)
    near(outcome(grouprl.method("sdpo_segment"), type(case)(batch, *list(vars(case).values())[1:])).grad_bt, 0 * same)
