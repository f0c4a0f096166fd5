"""Parts that choose and weigh tokens: hand values, brute force, ties, and what chance depends on."""

from __future__ import annotations

import itertools
from math import exp

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grouprl.algorithms.aggregate.weighted_mean import WeightedMean
from grouprl.algorithms.filter.papers.token_subset import TokenSubset
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.token_weight.papers.entropy_guided import EntropyGuided
from grouprl.algorithms.token_weight.papers.variance_subset import VarianceSubset, largest_spread
from grouprl.algorithms.token_weight.probability_weight import ProbabilityWeight
from grouprl.algorithms.token_weight.token_selection import TopTokens, hashed
from grouprl.core.errors import InputError
from small import f64, near, prepared, small

# --- top tokens ------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(fraction=st.floats(0.01, 1.0), n=st.integers(1, 30), seed=st.integers(0, 999))
def test_the_kept_share_is_the_fraction_give_or_take_one_token(fraction, n, seed):
    entropy = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    kept = TopTokens(fraction=fraction)(prepared([[1.0] * n], entropy_bt=[entropy.tolist()]))[0]
    assert abs(float(kept.sum()) - fraction * n) <= 1
    threshold = torch.quantile(entropy, 1 - fraction)
    assert torch.equal(kept.bool(), entropy >= threshold - 1e-12)


def test_equal_entropies_keep_everything():
    batch = prepared([[1.0, 1.0], [-1.0]], entropy_bt=[[0.3, 0.3], [0.3]])
    near(TopTokens(fraction=0.2)(batch), [[1.0, 1.0], [1.0, 0.0]])


def test_padding_and_tokens_outside_the_loss_set_no_threshold():
    batch = prepared([[1.0, 1.0, 1.0], [-1.0]], entropy_bt=[[0.1, 0.2, 9.0], [0.3]])
    batch = batch.replace(
        entropy_bt=torch.where(batch.mask_bt, batch.entropy_bt, 99.0),
        loss_mask_bt=batch.mask_bt & torch.tensor([[True, True, False], [True, True, True]]),
    )
    near(TopTokens(fraction=0.5)(batch), [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])


def test_top_tokens_of_each_completion_and_among_what_is_left():
    batch = prepared([[1.0, 1.0], [-1.0, -1.0]], entropy_bt=[[5.0, 4.0], [1.0, 2.0]])
    near(TopTokens(fraction=0.5)(batch), [[1.0, 1.0], [0.0, 0.0]])
    near(TopTokens(fraction=0.5, over="sequence")(batch), [[1.0, 0.0], [0.0, 1.0]])
    left = batch.replace(multiplier_bt=f64([[0.0, 0.0], [1.0, 1.0]]))
    near(TopTokens(fraction=0.5)(left), [[0.0, 0.0], [0.0, 1.0]])


def test_the_score_may_count_the_advantage():
    batch = prepared([[0.1, 3.0, -4.0]], entropy_bt=[[9.0, 1.0, 1.0]])
    near(TopTokens(fraction=0.3)(batch), [[1.0, 0.0, 0.0]])
    near(TopTokens(fraction=0.3, score="advantage_entropy")(batch), [[0.0, 0.0, 1.0]])


def test_a_fraction_of_one_and_missing_entropies_are_named():
    assert TopTokens(fraction=1.0).idle(RunFacts())
    assert VarianceSubset(fraction=1.0).idle(RunFacts())
    with pytest.raises(InputError, match="entropy_bt"):
        TopTokens()(prepared([[1.0]]))


# --- completions by the spread of advantages
# -----------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.integers(-6, 6), min_size=2, max_size=7), data=st.data())
def test_the_subset_has_the_largest_variance_of_all(values, data):
    size = data.draw(st.integers(1, len(values)))
    value_n = f64([float(v) for v in values])
    chosen = largest_spread(value_n, size, torch.arange(len(values), dtype=torch.float64))
    assert len(set(chosen.tolist())) == size
    best = max(float(value_n[list(c)].var(unbiased=False)) for c in itertools.combinations(range(len(values)), size))
    assert float(value_n[chosen].var(unbiased=False)) == pytest.approx(best, abs=1e-5)
    if size > 1:  # the sample variances of all subsets average to that of the whole
        assert float(value_n[chosen].var()) >= float(value_n.var()) - 1e-5


def test_completions_without_advantage_come_last():
    batch = prepared([[0.0], [1.0], [0.0], [-1.0], [0.0]], entropy_bt=[[1.0], [2.0], [3.0], [4.0], [5.0]])
    near(VarianceSubset(fraction=0.4)(batch)[:, 0], [0, 1, 0, 1, 0])
    dropped = batch.replace(loss_mask_bt=torch.tensor([[True], [False], [True], [True], [True]]))
    assert VarianceSubset(fraction=0.25)(dropped)[1, 0] == 0


def test_equal_completions_are_told_apart_by_entropy_not_by_place():
    advantages, entropies = [[1.0], [1.0], [1.0], [-1.0]], [[0.3], [0.1], [0.2], [0.4]]
    kept = VarianceSubset(fraction=0.5)(prepared(advantages, entropy_bt=entropies))[:, 0]
    back = VarianceSubset(fraction=0.5)(prepared(advantages[::-1], entropy_bt=entropies[::-1]))[:, 0]
    near(back.flip(0), kept)
    near(kept, [1.0, 0.0, 0.0, 1.0])


# --- a sample of the tokens ------------------------------------------------------------------------------------------


def long_row(n: int = 4000, rows: int = 2):
    old_bt = -torch.rand(rows, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return small([1.0, 0.0][:rows], [n] * rows, old_bt=old_bt)


def test_the_head_is_kept_and_the_rest_by_chance():
    keep_bt = TokenSubset(head=100, keep=0.3, limit=None)(long_row()).active_bt
    assert keep_bt[:, :100].all()
    assert keep_bt[:, 100:].double().mean() == pytest.approx(0.3, abs=0.03)
    assert not torch.equal(keep_bt[0], keep_bt[1])


def test_the_limit_holds_and_extremes_keep_all_or_the_head():
    assert TokenSubset(head=10, keep=0.5, limit=25)(long_row()).active_bt.sum(1).tolist() == [25, 25]
    assert TokenSubset(head=10, keep=0.0, limit=None)(long_row()).active_bt.sum(1).tolist() == [10, 10]
    assert TokenSubset(head=0, keep=1.0, limit=None)(long_row()).active_bt.all()


def test_positions_are_counted_in_action_tokens():
    mask_bt = torch.tensor([[False, True, False, True, True]])
    batch = small([1.0], [5], mask_bt=mask_bt)
    keep_bt = TokenSubset(head=2, keep=0.0)(batch).active_bt
    assert keep_bt.tolist() == [[False, True, False, True, False]]


def test_chance_is_even_and_depends_on_the_whole_row_but_not_on_its_place():
    batch = long_row()
    chance_bt = hashed(batch.old_bt, batch.mask_bt)
    assert torch.histc(chance_bt, 10, 0, 1) / chance_bt.numel() == pytest.approx([0.1] * 10, abs=0.01)
    near(hashed(batch.old_bt.flip(0), batch.mask_bt).flip(0), chance_bt)
    changed_bt = batch.old_bt.clone()
    changed_bt[0, 7] -= 0.1
    assert (hashed(changed_bt, batch.mask_bt)[0] != chance_bt[0]).all()
    assert torch.equal(hashed(changed_bt, batch.mask_bt)[1], chance_bt[1])
    near(hashed(batch.old_bt.float(), batch.mask_bt), chance_bt)


def test_a_subset_that_keeps_all_is_named():
    assert TokenSubset(head=50).idle(RunFacts(max_length=40))
    assert TokenSubset(head=50).idle(RunFacts(max_length=200)) == []


# --- the mean over what is kept --------------------------------------------------------------------------------------


def test_the_weighted_mean_counts_multipliers():
    batch = prepared([[1.0, 1.0], [1.0]])
    near(WeightedMean()(batch), [[1 / 3, 1 / 3], [1 / 3, 0.0]])
    near(WeightedMean()(batch.replace(multiplier_bt=f64([[1.0, 0.0], [3.0, 9.0]]))), [[0.25, 0.25], [0.25, 0.0]])
    near(WeightedMean()(batch.replace(multiplier_bt=f64([[0.0, 0.0], [0.0, 1.0]]))), [[0.0, 0.0], [0.0, 0.0]])


# --- weights ---------------------------------------------------------------------------------------------------------


def test_probability_weights_run_from_one_minus_alpha_to_one():
    batch = prepared([[1.0, 1.0, 1.0]], old_bt=[[0.0, -1.0, -60.0]])
    near(ProbabilityWeight(alpha=0.2)(batch), [[1.0, 0.8 + 0.2 * exp(-1), 0.8]])
    near(ProbabilityWeight(alpha=0.0)(batch), [[1.0, 1.0, 1.0]])
    assert ProbabilityWeight(alpha=0.0).idle(RunFacts())


def test_entropy_weights_sum_to_one_over_each_group_at_each_step():
    batch = prepared(
        [[1.0, 1.0, 1.0], [-1.0, -1.0], [0.5], [2.0]],
        groups=[7, 7, 7, 3],
        entropy_bt=[[0.1, 0.2, 0.3], [1.0, 2.0], [0.7], [0.9]],
    )
    out_bt = EntropyGuided(alpha=0.5, temperature=0.7)(batch)
    near(out_bt[:3].sum(0), [1.0, 1.0, 1.0])
    near(out_bt[3], [1.0, 0.0, 0.0])
    scores = [exp((1.0 + 0.05) / 0.7), exp((-1.0 + 0.5) / 0.7), exp((0.5 + 0.35) / 0.7)]
    near(out_bt[:3, 0], [s / sum(scores) for s in scores])
    whole_bt = EntropyGuided(alpha=0.5, temperature=0.7, level="sequence")(batch)
    scores = [exp((1.0 + 0.1) / 0.7), exp((-1.0 + 0.75) / 0.7), exp((0.5 + 0.35) / 0.7)]
    near(whole_bt[:3, 0], [s / sum(scores) for s in scores])
    near(whole_bt[1], [scores[1] / sum(scores)] * 2 + [0.0])


def test_steps_are_counted_in_action_tokens():
    """A hole in one completion does not pair its tokens with the wrong step of the other."""
    batch = prepared([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], entropy_bt=[[0.0, 9.0, 2.0], [0.0, 1.0, 9.0]])
    batch = batch.replace(loss_mask_bt=torch.tensor([[True, False, True], [True, True, False]]))
    out_bt = EntropyGuided()(batch)
    near(out_bt[0, 2], 1 / (1 + exp(1.0 - 2.0)))
    near(out_bt[0, 2] + out_bt[1, 1], 1.0)
