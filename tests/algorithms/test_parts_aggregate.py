"""Denominators: every weight by hand, on lengths 3 and 1 in group 0 and 2 in group 1."""

from __future__ import annotations

import pytest
import torch

from grouprl.algorithms.aggregate.aggregate import ConstantLength, SequenceMean, SequenceSum, TokenMean, TokenSum
from grouprl.algorithms.aggregate.papers.group_mean import GroupMean
from grouprl.algorithms.part import RunFacts
from grouprl.core.errors import InputError
from small import near, small

BATCH = small([0.0] * 3, [3, 1, 2], [0, 0, 1], max_length=5)
ALL = [TokenMean(), SequenceMean(), SequenceSum(), TokenSum(), ConstantLength(), GroupMean()]


@pytest.mark.parametrize(
    ("part", "per_row"),
    [
        (TokenMean(), [1 / 6] * 3),
        (SequenceMean(), [1 / 9, 1 / 3, 1 / 6]),
        (SequenceSum(), [1 / 3] * 3),
        (TokenSum(), [1.0] * 3),
        (ConstantLength(), [1 / 15] * 3),
        (ConstantLength(length=10), [1 / 30] * 3),
        (ConstantLength(length=10, sequences="sum"), [1 / 10] * 3),
        (GroupMean(), [1 / 8, 1 / 8, 1 / 4]),
    ],
)
def test_weights(part, per_row):
    expected = torch.tensor(per_row, dtype=torch.float64)[:, None] * BATCH.mask_bt
    near(part(BATCH), expected)


@pytest.mark.parametrize("part", ALL, ids=lambda p: p.name)
def test_rows_out_of_the_loss_leave_the_denominators(part):
    """Taking a row out of the loss is the same as never having had it."""
    keep_b = torch.tensor([True, False, True])
    masked = part(BATCH.replace(loss_mask_bt=BATCH.mask_bt & keep_b[:, None]))
    assert not masked[1].any()
    near(masked[keep_b], part(BATCH.rows(keep_b)))


@pytest.mark.parametrize("part", ALL, ids=lambda p: p.name)
def test_a_step_without_tokens_has_no_weight(part):
    assert not part(BATCH.replace(loss_mask_bt=torch.zeros_like(BATCH.mask_bt))).any()


@pytest.mark.parametrize("part", [TokenMean(), SequenceMean(), GroupMean()], ids=lambda p: p.name)
def test_means_sum_to_one(part):
    near(part(BATCH).sum(), 1.0)


def test_a_constant_length_must_be_known():
    with pytest.raises(InputError, match=r"constant_length has no length.*Set constant_length's length"):
        ConstantLength()(BATCH.replace(max_length=None))


def test_groups_of_one_make_group_mean_idle():
    assert GroupMean().idle(RunFacts(group_size=1))
    assert not GroupMean().idle(RunFacts(group_size=2))
    alone = BATCH.replace(group_b=torch.arange(3))
    near(GroupMean()(alone), SequenceMean()(alone))
