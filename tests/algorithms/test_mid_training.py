"""RMT: the triangle over lengths, its budget, and the order of prompts by the entropy of the next token."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import grouprl
from fake_context import CharacterPolicy, FakeContext
from grouprl.algorithms.curriculum.papers.rising_entropy import RisingEntropy, ranks, weights
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.reward_transform.papers.triangular_length import TriangularLength, triangle
from grouprl.core.outputs import ENTROPY


def batch(step, lengths=(2, 4, 6)):
    mask_bt = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    rows = len(lengths)
    return grouprl.Batch(
        mask_bt=mask_bt, group_b=torch.zeros(rows, dtype=torch.int64), reward_b=torch.ones(rows, dtype=torch.float64),
        step=step, steps=5,
    )  # fmt: skip


def test_the_triangle_is_one_at_the_budget_nothing_outside_and_even_on_both_sides():
    length_b = torch.arange(0.0, 13.0)
    found_b = triangle(length_b, 6, 4)
    assert found_b[[6, 2, 10, 0, 12]].tolist() == [1, 0, 0, 0, 0]
    assert torch.equal(found_b, found_b.flip(0))
    assert found_b[[3, 4, 5]].tolist() == [0.25, 0.5, 0.75]


@pytest.mark.parametrize(
    ("step", "reward"), [(0, [1, 1.1, 1.2]), (2, [1.1, 1.2, 1.1]), (4, [1.2, 1.1, 1]), (9, [1.2, 1.1, 1])]
)
def test_its_peak_falls_evenly_from_the_first_step_to_the_last(step, reward):
    part = TriangularLength(first=6, last=2, width=4, coef=0.2)
    assert part(batch(step)).reward_b.tolist() == pytest.approx(reward)


def test_a_weight_of_nothing_has_no_effect():
    assert TriangularLength(coef=0.0).idle(RunFacts())
    assert TriangularLength(coef=0.0)(batch(0)).reward_b.tolist() == [1, 1, 1]


def test_weights_prefer_the_lowest_entropy_first_and_the_highest_last():
    rank_n = ranks(np.array([3.0, 1.0, 2.0, 1.0]))
    assert rank_n.tolist() == pytest.approx([1, 0, 2 / 3, 1 / 3])
    first, middle, last = (weights(rank_n, over, 4.0) for over in (0, 0.5, 1))
    assert (first.argmax(), last.argmax()) == (1, 0)
    assert middle.tolist() == [1, 1, 1, 1]
    assert first[1] / first[0] == pytest.approx(np.exp(4))
    assert ranks(np.array([2.0])).tolist() == [0]


class Sure(CharacterPolicy):
    """Prompt "q3=" has entropy 3."""

    def evaluate(self, tokens, names):
        assert names == (ENTROPY,)
        return {ENTROPY: torch.tensor([[float(chr(ids[1]))] for ids in tokens.prompt_ids])}


def chosen(context, part, times=300):
    return np.bincount([r.index for _ in range(times) for r in part.choose(2, context)], minlength=6) / times


def test_a_run_begins_with_sure_prompts_and_ends_with_open_ones():
    part = RisingEntropy(sharp=6.0)
    context = FakeContext((0.5,) * 6, policy=Sure(), prompts=2, steps=11)
    early = chosen(context, part)
    context.step = 10
    late = chosen(context, part)
    assert early[0] > early[3] > early[5]
    assert late[5] > late[3] > late[0]
    context.step = 5
    assert sorted(r.index for r in part.choose(6, context)) == [0, 1, 2, 3, 4, 5]
    assert len(part.choose(9, context)) == 9
    assert RisingEntropy().refuse(RunFacts(examples=None))
