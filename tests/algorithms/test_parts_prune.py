"""Pruning after the advantages, down-sampling before them: what stays, ties, limits."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grouprl
from batches import random_case
from grouprl.algorithms.filter.papers.pruned import MaxVariance, keep_count, ordered, shuffled, widest
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.prune.papers.by_advantage import ByAdvantage
from grouprl.methods.compose import as_data, compose
from small import f64, near, prepared, small

LIVE = RunFacts(group_size=8)


def kept(batch: grouprl.Batch) -> list[bool]:
    return batch.active_bt.any(1).tolist()


@pytest.mark.parametrize(
    ("n", "rate", "least", "k"),
    [
        (16, 0.5, 1, 8),
        (16, 0.9375, 1, 1),
        (16, 0.875, 1, 2),
        (5, 0.5, 1, 2),
        (3, 0.9, 1, 1),
        (3, 0.9, 2, 2),
        (1, 0.9, 2, 1),
        (7, 0.0, 1, 7),
        (10, 0.7, 1, 3),
    ],
)
def test_how_many_stay(n, rate, least, k):
    assert keep_count(n, rate, least) == k


def test_the_largest_advantages_stay_whatever_their_sign():
    batch = prepared([[0.2], [-0.9, -0.9], [0.5], [-0.1]])
    assert kept(ByAdvantage(rate=0.5)(batch)) == [False, True, True, False]
    assert kept(ByAdvantage(rate=0.5, which="largest")(batch)) == [True, False, False, True]
    assert ByAdvantage(rate=0.5)(batch).advantage_bt is batch.advantage_bt


def test_every_prompt_keeps_its_share_or_the_batch_does():
    batch = prepared([[3.0], [2.0], [0.2], [0.1]]).replace(group_b=torch.tensor([0, 0, 1, 1]))
    assert kept(ByAdvantage(rate=0.5)(batch)) == [True, False, True, False]
    assert kept(ByAdvantage(rate=0.5, scope="batch")(batch)) == [True, True, False, False]


def test_one_completion_stays_at_any_rate():
    assert sum(kept(ByAdvantage(rate=0.99)(prepared([[1.0], [2.0], [-3.0]])))) == 1


def test_rows_that_left_before_do_not_take_a_place():
    batch = prepared([[9.0], [1.0], [2.0]]).replace(loss_mask_bt=torch.tensor([[False], [True], [True]]))
    assert kept(ByAdvantage(rate=0.5)(batch)) == [False, False, True]


def test_the_paper_s_example_keeps_the_success_with_its_advantage():
    """One success of eight, half kept: A = 2.474 as over all eight, not over the four."""
    ready = grouprl.method("cppo").prepare(small([1, 0, 0, 0, 0, 0, 0, 0]))
    assert sum(kept(ready)) == 4
    assert kept(ready)[0]
    near(ready.advantage_bt[0, 0], 0.875 / (0.35355339 + 1e-4), 1e-6)


def test_a_dead_prompt_keeps_its_count_too():
    assert sum(kept(grouprl.method("cppo", rate=0.75).prepare(small([1.0] * 8)))) == 2


def test_pruned_completions_cost_no_pass():
    method, case = grouprl.method("cppo"), random_case(0)
    ready = method.prepare(case.batch)
    assert method.zero_rows(ready)[~ready.active_bt.any(1)].all()
    assert not ready.weight_bt[~ready.active_bt].any()
    near(ready.weight_bt.sum(), 1.0)


# --- ties -----------------------------------------------------------------------------------------------------------


def test_the_fixed_shuffle_belongs_to_the_completion():
    batch = random_case(1).batch
    numbers = shuffled(batch)
    assert len(set(numbers.tolist())) == len(numbers)
    order = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(0))
    assert torch.equal(shuffled(batch.rows(order)), numbers[order])


def test_the_fixed_shuffle_favours_neither_likely_nor_long_completions():
    g = torch.Generator().manual_seed(0)
    length_b = torch.randint(1, 9, (4000,), generator=g)
    mask_bt = torch.arange(8)[None] < length_b[:, None]
    old_bt = -torch.rand(4000, 8, generator=g, dtype=torch.float64)
    batch = grouprl.Batch(mask_bt=mask_bt, group_b=torch.zeros(4000).long(), reward_b=torch.zeros(4000), old_bt=old_bt)
    numbers = shuffled(batch).double()
    for other in (length_b.double(), (old_bt * mask_bt).sum(1), (old_bt * mask_bt).sum(1) / length_b):
        assert abs(float(torch.corrcoef(torch.stack([numbers, other]))[0, 1])) < 0.05


def test_order_is_by_value_first():
    batch = small([0, 0, 0, 0], old_bt=[[-1.0], [-2.0], [-3.0], [-4.0]])
    order = ordered(f64(2, 1, 2, 0), batch)
    assert order[:2].tolist() == [3, 1]
    assert set(order[2:].tolist()) == {0, 2}


# --- down-sampling --------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(rewards=st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0, -2.0]), min_size=2, max_size=7), m=st.integers(2, 7))
def test_the_widest_subset_is_the_best_of_all_subsets(rewards, m):
    m, values = min(m, len(rewards)), f64(rewards)
    chosen = widest(torch.argsort(values, stable=True), values, m)
    best = max(float(values[list(c)].var(unbiased=False)) for c in combinations(range(len(rewards)), m))
    assert len(set(chosen.tolist())) == m
    assert float(values[chosen].var(unbiased=False)) == pytest.approx(best, abs=1e-12)


def test_down_sampling_balances_right_and_wrong():
    ready = grouprl.method("pods").prepare(small([1] + [0] * 7 + [1] * 8, groups=[0] * 16))
    assert sum(kept(ready)) == 4
    assert float(ready.reward_b[ready.active_bt.any(1)].sum()) == 2
    near(ready.advantage_bt.abs().max(), 0.5 / ((1 / 3) ** 0.5 + 1e-6))


def test_down_sampling_needs_two():
    near(
        grouprl.method("pods", rate=0.9).prepare(small([0, 0.4, 1])).advantage_bt[:, 0].abs().gt(0).double(), [1, 0, 1]
    )


def test_kept_completions_are_judged_among_themselves():
    ready = MaxVariance(rate=0.5)(small([0.0, 0.2, 0.9, 1.0]))
    assert ready.stats_b.tolist() == [True, False, False, True]


# --- plans ----------------------------------------------------------------------------------------------------------


def test_what_takes_nothing_away_is_named():
    assert ByAdvantage(rate=0.0).idle(LIVE)
    assert ByAdvantage().idle(RunFacts(group_size=1))
    assert not ByAdvantage(rate=0.5).idle(LIVE)
    assert MaxVariance(rate=0.75).idle(RunFacts(group_size=2))
    assert not MaxVariance(rate=0.75).idle(LIVE)


def test_six_lines_of_yaml():
    spec = {
        "base": "dapo",
        "advantage": "beta_normalized",
        "add": {"prune": [{"part": "by_advantage", "rate": 0.5}]},
    }
    method = compose(spec).method
    assert compose(as_data(method)).method == method
    assert [p.name for p in method.prune] == ["by_advantage"]
    ready = method.prepare(small([1, 0, 0, 0, 1, 0], groups=[0, 0, 0, 0, 1, 1], max_length=9))
    assert sum(kept(ready)) == 3
