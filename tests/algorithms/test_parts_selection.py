"""Shaping, selection, refill and the multipliers of importance."""

from __future__ import annotations

from math import exp

import pytest
import torch

from grouprl.algorithms.filter.filter import MixedGroups, RejectMismatch
from grouprl.algorithms.filter.papers.drop_truncated import DropTruncated
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.refill.refill import DynamicSampling
from grouprl.algorithms.reward_transform.missing_eos import MissingEOS
from grouprl.algorithms.reward_transform.reward_transform import RewardClip, SoftOverlong
from grouprl.algorithms.token_weight.importance import MaskedImportance, TruncatedImportance
from grouprl.algorithms.token_weight.token_weight import OffPolicyMask, mismatch_ratio
from grouprl.core.errors import InputError
from small import f64, near, small

EXACT, ROUGH = RunFacts(exact_sampler=True), RunFacts(exact_sampler=False)


# --- shaping --------------------------------------------------------------------------------------------------------


def test_soft_overlong_with_the_papers_numbers():
    """20480 tokens, the last 4096 are the buffer: nothing up to 16384, half at 18432, everything at 20480."""
    lengths = [100, 16384, 18432, 20480]
    batch = small([1.0] * 4, [1] * 4, max_length=20480)
    mask_bt = torch.arange(20480)[None] < torch.tensor(lengths)[:, None]
    batch = batch.replace(mask_bt=mask_bt, old_bt=None)
    near(SoftOverlong(buffer=0.2)(batch).reward_b, [1.0, 1.0, 0.5, 0.0])
    near(SoftOverlong(buffer=4096, penalty=2.0)(batch).reward_b, [1.0, 1.0, 0.0, -1.0])


def test_soft_overlong_beyond_the_limit_stays_at_the_penalty():
    near(SoftOverlong(buffer=1, length=2)(small([0.0] * 3, [1, 2, 4])).reward_b, [0.0, -1.0, -1.0])


def test_nothing_is_overlong_without_a_limit():
    near(SoftOverlong()(small([1.0], [9])).reward_b, [1.0])


def test_a_buffer_that_no_completion_reaches_is_named():
    part = SoftOverlong(buffer=20, length=100)
    assert "begins after 80 tokens" in part.idle(RunFacts(max_length=64))[0]
    assert part.idle(RunFacts(max_length=100)) == []
    assert SoftOverlong(penalty=0.0).idle(RunFacts(max_length=100))


def test_reward_clip_and_missing_end():
    near(RewardClip(limit=2.0)(small([5.0, -5.0, 1.0])).reward_b, [2.0, -2.0, 1.0])
    near(MissingEOS(penalty=0.5)(small([1.0, 1.0], truncated_b=[True, False])).reward_b, [0.5, 1.0])
    with pytest.raises(InputError, match="truncated_b"):
        MissingEOS()(small([1.0]))


# --- selection ------------------------------------------------------------------------------------------------------


def test_mixed_groups():
    out = MixedGroups()(small([1, 0, 1, 1, 0, 0], groups=[0, 0, 1, 1, 2, 2]))
    assert out.loss_mask_bt.any(1).tolist() == [True, True, False, False, False, False]
    assert out.stats_b.tolist() == [True, True, False, False, False, False]
    assert MixedGroups(in_statistics=True)(small([1, 1])).stats_b.all()


def test_mixed_groups_go_by_raw_outcomes_not_by_shaped_rewards():
    """Both completions are right; shaping made their rewards differ."""
    shaped = small([1.0, 0.4])
    assert MixedGroups()(shaped.replace(raw_reward_b=f64([1.0, 1.0]))).loss_mask_bt.any().item() is False
    assert MixedGroups()(shaped.replace(correct_b=torch.tensor([True, True]))).loss_mask_bt.any().item() is False
    same = small([0.5, 0.5], correct_b=[True, False])
    assert MixedGroups()(same).loss_mask_bt.all()


def test_a_group_of_one_is_never_mixed():
    assert not MixedGroups()(small([1.0])).loss_mask_bt.any()
    assert MixedGroups().refuse(RunFacts(group_size=1))


def test_truncated_completions_leave_the_loss_and_perhaps_the_statistics():
    batch = small([1, 0, 0], truncated_b=[False, False, True])
    kept, gone = DropTruncated(in_statistics=True)(batch), DropTruncated(in_statistics=False)(batch)
    for out in (kept, gone):
        assert out.loss_mask_bt.any(1).tolist() == [True, True, False]
    assert kept.stats_b.tolist() == [True, True, True]
    assert gone.stats_b.tolist() == [True, True, False]


def test_refill_wants_what_selection_keeps():
    batch = small([1, 0, 1, 1], groups=[0, 0, 1, 1])
    part = DynamicSampling(max_rounds=3)
    assert (
        part.wanted(batch).tolist() == MixedGroups()(batch).loss_mask_bt.any(1).tolist() == [True, True, False, False]
    )
    assert DynamicSampling(max_rounds=1).idle(RunFacts())
    assert not part.idle(RunFacts())


# --- importance between sampler and trainer ---------------------------------------------------------------------------

GAP = small([1.0, 1.0], [2, 2], behavior_bt=[[-1.4, -2.2], [-0.6, -1.0]])
"""log π_old - log π_behavior: 0.4 and 1.2, -0.4 and 0."""


def test_ratios_of_the_trainer_to_the_sampler():
    near(mismatch_ratio(GAP, "token").log(), [[0.4, 1.2], [-0.4, 0.0]])
    near(mismatch_ratio(GAP, "sequence").log(), [[0.8, 0.8], [-0.2, -0.2]])
    near(mismatch_ratio(GAP, "sequence_sum").log(), [[1.6, 1.6], [-0.4, -0.4]])


def test_truncated_importance():
    near(TruncatedImportance(high=2.0)(GAP), [[exp(0.4), 2.0], [exp(-0.4), 1.0]])
    near(TruncatedImportance(high=2.0, low=0.8)(GAP), [[exp(0.4), 2.0], [0.8, 1.0]])
    near(TruncatedImportance(high=3.0, level="sequence_sum")(GAP), [[3.0, 3.0], [exp(-0.4)] * 2])


def test_masked_importance():
    near(MaskedImportance(low=0.5, high=2.0)(GAP), [[exp(0.4), 0.0], [exp(-0.4), 1.0]])
    near(MaskedImportance(low=0.0, high=3.0, level="sequence_sum")(GAP), [[0.0, 0.0], [exp(-0.4)] * 2])
    with pytest.raises(ValueError, match="interval must not be empty"):
        MaskedImportance(low=3.0, high=2.0)


def test_rejection_takes_tokens_out_of_the_mask():
    assert RejectMismatch(low=0.5, high=2.0)(GAP).loss_mask_bt.tolist() == [[True, False], [True, True]]
    whole = RejectMismatch(low=0.5, high=2.0, level="sequence")(GAP).loss_mask_bt
    assert whole.tolist() == [[False, False], [True, True]]


def test_wrong_completions_that_the_policy_has_left_are_ignored():
    """mean(log π_behavior - log π_old) is -0.8 and 0.2."""
    batch = GAP.replace(advantage_bt=f64([[-1.0, -1.0], [-1.0, -1.0]]))
    near(OffPolicyMask(delta=0.1)(batch), [[1.0, 1.0], [0.0, 0.0]])
    near(OffPolicyMask(delta=0.1)(batch.replace(advantage_bt=-batch.advantage_bt)), torch.ones(2, 2))
    near(OffPolicyMask(delta=0.5)(batch), torch.ones(2, 2))


@pytest.mark.parametrize("part", [TruncatedImportance(), MaskedImportance(), OffPolicyMask(), RejectMismatch()])
def test_an_exact_sampler_needs_no_correction(part):
    assert "the sampler is exact" in part.idle(EXACT)[0]
    assert part.idle(ROUGH) == []
    with pytest.raises(InputError, match="behavior_bt"):
        part(small([1.0]).replace(advantage_bt=f64([[1.0]])))
