"""Regression, pairwise, off-policy and discriminative parts: hand values, limits, what acts and what does not."""

from __future__ import annotations

from itertools import combinations
from math import e, exp, log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grouprl.algorithms.advantage.advantage import Given, Relative
from grouprl.algorithms.advantage.labels import Labels
from grouprl.algorithms.advantage.soft_baseline import SoftBaseline
from grouprl.algorithms.advantage_transform.advantage_transform import ValidFraction
from grouprl.algorithms.advantage_transform.papers.shift import Shift
from grouprl.algorithms.aggregate.aggregate import SequenceMean, TokenMean
from grouprl.algorithms.filter.papers.balance_negatives import BalanceNegatives
from grouprl.algorithms.losses import at_tokens, paired
from grouprl.algorithms.objective.off_policy import RegionGradient
from grouprl.algorithms.objective.papers.discriminative import Classify, ImplicitNegative, Separate
from grouprl.algorithms.objective.papers.pairwise import PairwiseGradient
from grouprl.algorithms.objective.regression import GroupRegression, Regression, completion_value
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.regularize.papers.kl_constraint import KLConstraint
from grouprl.algorithms.regularize.papers.policy_drift import PolicyDrift
from grouprl.algorithms.token_weight.papers.advantage_tilt import AdvantageTilt
from grouprl.algorithms.token_weight.papers.success_weight import SuccessWeight
from grouprl.core.errors import InputError
from small import f64, near, prepared, slopes, small

SUMS = st.lists(st.floats(-2, 2), min_size=3, max_size=6).filter(lambda x: max(x) - min(x) > 0.1)


def test_the_value_of_a_completion_is_exact_where_its_tokens_agree():
    value_bt, active_bt = f64([[0.1, 0.1, 0.1], [1.0, 3.0, 9.0], [5.0, 5.0, 5.0]]), torch.ones(3, 3, dtype=torch.bool)
    active_bt[1, 2] = False
    active_bt[2] = False
    value_b = completion_value(value_bt, active_bt)
    assert value_b.tolist() == [0.1, 2.0, 0.0]


# --- regression -----------------------------------------------------------------------------------------------------


def test_regression_of_tokens_and_of_completions():
    batch = prepared([[1.0, -1.0], [0.5, 0.5]])
    loss_bt, grad_bt = slopes(Regression(2.0, 0.5, "old", "token"), [[0.3, 0.1], [0.0, -0.2]], batch)
    near(loss_bt, [[0.5 * 0.4**2, 0.5 * 1.2**2], [0.5 * 0.5**2, 0.5 * 0.9**2]])
    near(grad_bt, [[2 * -0.4, 2 * 1.2], [2 * -0.5, 2 * -0.9]])
    loss_bt, _ = slopes(Regression(2.0, 1.0, "old", "sequence"), [[0.3, 0.1], [0.0, -0.2]], batch)
    near(loss_bt, [[0.8**2] * 2, [0.9**2] * 2])


def pair_loss(sums: list[float], rewards: list[float]) -> float:
    pairs = list(combinations(range(len(sums)), 2))
    return sum((sums[i] - sums[j] - rewards[i] + rewards[j]) ** 2 for i, j in pairs) / len(pairs)


@settings(max_examples=25, deadline=None)
@given(sums=SUMS, seed=st.integers(0, 99))
def test_the_group_form_is_the_mean_over_pairs(sums, seed):
    rewards = torch.randn(len(sums), generator=torch.Generator().manual_seed(seed)).double()
    batch = prepared([[float(r)] for r in rewards - rewards.mean()])
    loss_bt, _ = slopes(GroupRegression(beta=1.0, coef=2.0), [[s] for s in sums], batch)
    near(loss_bt.mean(), pair_loss(sums, rewards.tolist()), 1e-9)


@settings(max_examples=25, deadline=None)
@given(sums=SUMS, scale=st.floats(0.1, 20), shift=st.floats(-5, 5))
def test_standardised_predictions_do_not_change_with_an_affine_map(sums, scale, shift):
    rows, moved = [[s] for s in sums], [[scale * s + shift] for s in sums]
    batch = prepared([[float(i)] for i in range(len(sums))])
    objective = GroupRegression(coef=1.0, average="population", standardize_eps=1e-9)
    near(slopes(objective, rows, batch)[0], slopes(objective, moved, batch)[0], 1e-6)


def test_standardised_regression_is_zero_for_increasing_affine_maps_alone():
    rewards = f64([3.0, 0.0, 1.0])
    target = (rewards - rewards.mean()) / rewards.std()
    batch = prepared([[float(a)] for a in target])
    objective = GroupRegression(coef=1.0, average="population", standardize_eps=1e-9)
    near(slopes(objective, [[0.5 * float(r) - 7] for r in rewards], batch)[0].sum(), 0.0)
    assert slopes(objective, [[-0.5 * float(r)] for r in rewards], batch)[0].sum() > 1
    assert slopes(objective, [[float(r) ** 2] for r in rewards], batch)[0].sum() > 0.01


def test_standardised_regression_begins_with_a_finite_policy_gradient():
    _, grad_bt = slopes(
        GroupRegression(coef=1.0, average="population", standardize_eps=0.1), [[0.0]] * 2, prepared([[1.0], [-1.0]])
    )
    near(grad_bt, [[-20.0], [20.0]])


def test_a_lone_completion_or_one_outside_the_statistics_has_no_regression():
    batch = prepared([[1.0], [1.0], [-1.0], [2.0]], groups=[0, 1, 1, 1], stat_b=[True, True, True, False])
    loss_bt, grad_bt = slopes(GroupRegression(), [[0.3], [0.2], [0.1], [3.0]], batch)
    assert loss_bt[[0, 3]].tolist() == [[0.0], [0.0]]
    assert not grad_bt[[0, 3]].any()
    assert GroupRegression().zero_rows(batch).tolist() == [True, False, False, True]
    near(grad_bt[1:3], [[0.1 - 2], [2 - 0.1]])


def test_soft_baseline_and_its_limits():
    batch = small([1, 0, 0, 0.5])
    near(SoftBaseline(beta=0.5)(batch)[0, 0], 1 - 0.5 * log((e**2 + 1 + 1 + e) / 4))
    near(SoftBaseline(beta=1e6)(batch), Relative(scale="none")(batch), 1e-6)
    near(SoftBaseline(beta=1e-3)(batch)[:, 0], f64([0.0, -1.0, -1.0, -0.5]) + 1e-3 * log(4))
    assert not SoftBaseline(beta=0.5)(small([0, 0, 0])).any()


def test_soft_baseline_under_the_reference_counts_completions_as_the_reference_would():
    batch = small([1, 0], [2, 1], ref_bt=[[-1.0, -1 + log(3)], [-1.0]])
    near(SoftBaseline(beta=1.0, under="ref")(batch)[1, 0], -log((3 * e + 1) / 4))


# --- off-policy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("region", "advantage", "log_ratio", "acts"),
    [
        ("none", 1.0, 2.0, True),
        ("one_side", 1.0, 0.5, False),
        ("one_side", 1.0, -0.5, True),
        ("one_side", -1.0, 0.5, True),
        ("one_side", -1.0, -0.5, False),
        ("two_side", 1.0, -0.5, False),
        ("two_side", -1.0, 0.5, False),
        ("two_side", -1.0, 0.1, True),
        ("ring", 1.0, -0.5, False),
        ("ring", 1.0, -1.0, True),
        ("ring", 1.0, 1.2, False),
        ("ring", -1.0, 0.5, False),
        ("ring", -1.0, 1.2, True),
        ("ring", -1.0, -1.0, False),
    ],
)
def test_regions(region, advantage, log_ratio, acts):
    objective = RegionGradient(region=region)
    _, grad_bt = slopes(objective, [[log_ratio]], prepared([[advantage]]))
    near(grad_bt, [[-advantage if acts else 0.0]])
    _, weighted_bt = slopes(
        RegionGradient(region=region, correction="importance"), [[log_ratio]], prepared([[advantage]])
    )
    near(weighted_bt, exp(log_ratio) * grad_bt)
    metrics = objective(f64([[log_ratio - 1]]), prepared([[advantage]])).metrics
    assert ("clip_fraction" in metrics) == (region != "none"), "without a region there is nothing to report"
    assert bool(metrics.get("clip_fraction", 0)) != acts
    assert bool(metrics.get("clip_fraction_high", 0)) == (not acts and log_ratio > 0)


@pytest.mark.parametrize("log_ratio", [-2.0, -0.3, 0.0, 0.4, 1.0])
def test_policy_drift_has_the_slope_of_the_kl_from_the_old_policy(log_ratio):
    """d/dlogp of the k3 estimate ρ - 1 - log ρ of KL(old || π) is ρ - 1, here at most 2."""
    logp_bt = f64([[log_ratio - 1]]).requires_grad_()
    loss = PolicyDrift(coef=0.5, cap=1.5)(logp_bt, prepared([[1.0]])).loss_bt.sum()
    near(torch.autograd.grad(loss, logp_bt)[0], [[0.5 * min(exp(log_ratio) - 1, 1.5)]])
    free = PolicyDrift(coef=0.5, cap=None)(logp_bt, prepared([[1.0]])).loss_bt.sum()
    near(torch.autograd.grad(free, logp_bt)[0], [[0.5 * (exp(log_ratio) - 1)]])


def test_shift_and_tilt():
    batch = small([1, 0], [1, 2], stat_b=[True, False]).replace(advantage_bt=f64([[2.0, 0.0], [-1.0, -1.0]]))
    near(Shift(amount=0.1)(batch.advantage_bt, batch), [[2.1, 0.0], [-1.0, -1.0]])
    near(AdvantageTilt(temperature=2.0)(batch), [[e, 1.0], [e**-0.5, e**-0.5]])
    assert AdvantageTilt()(batch.replace(advantage_bt=f64([[1e9, 0.0], [-1e9, 0.0]]))).isfinite().all()


def test_surplus_negatives_are_dropped_from_the_statistics_alone():
    old_bt = [[-1.0 - i / 7] for i in range(8)]
    batch = small([1, 0, 0, 0, 0, 1, 1, 0.5], groups=[0, 0, 0, 0, 0, 1, 1, 1], old_bt=old_bt)
    kept = BalanceNegatives()(batch)
    assert kept.stats_b[:5].sum() == 2
    assert bool(kept.stats_b[0])
    assert kept.stats_b[5:].all(), "two good ones, one bad one"
    assert kept.loss_mask_bt is None
    order = torch.tensor([4, 2, 7, 0, 3, 1, 6, 5])
    assert torch.equal(BalanceNegatives()(batch.rows(order)).stats_b, kept.stats_b[order])


def test_which_negatives_are_dropped_varies():
    g = torch.Generator().manual_seed(0)
    dropped = set()
    for _ in range(60):
        batch = small([1, 0, 0, 0], old_bt=[[float(x)] for x in -torch.rand(4, generator=g)])
        dropped.add(tuple(BalanceNegatives()(batch).stats_b.tolist()))
    assert dropped == {(True, True, False, False), (True, False, True, False), (True, False, False, True)}


def test_the_valid_fraction_can_be_bounded():
    batch = small([1, 0, 1, 1, 1, 1, 1, 1], groups=[0, 0, 1, 1, 2, 2, 3, 3])
    ones_bt = torch.ones(8, 1, dtype=torch.float64)
    assert float(ValidFraction()(ones_bt, batch)[0]) == 4.0
    assert float(ValidFraction(limit=3.0)(ones_bt, batch)[0]) == 3.0


# --- pairs ----------------------------------------------------------------------------------------------------------


def test_pairs_by_hand():
    """Ratios e^0.1, e^-0.1, 1: each term is half of the difference times both ratios, over three pairs."""
    batch = prepared([[3.0], [1.0], [0.0]])
    _, grad_bt = slopes(PairwiseGradient(), [[0.1], [-0.1], [0.0]], batch)
    w = [exp(0.1), exp(-0.1), 1.0]
    terms = {(i, j): 0.5 * (a - b) * w[i] * w[j] for (i, a), (j, b) in combinations(enumerate([3, 1, 0]), 2)}
    first, second, third = terms[0, 1] + terms[0, 2], terms[1, 2] - terms[0, 1], -terms[0, 2] - terms[1, 2]
    near(grad_bt / 3, -f64([[first], [second], [third]]) / 3)


@pytest.mark.parametrize(
    ("clip", "moved", "first", "second"),
    [
        ("separate", (0.3, 0.0), False, True),
        ("separate", (0.0, -0.3), True, False),
        ("separate", (-0.3, 0.3), True, True),
        ("joint", (0.3, 0.0), False, False),
        ("joint", (0.3, 0.3), True, True),
        ("joint", (-0.3, 0.3), True, True),
    ],
)
def test_clips_of_a_pair(clip, moved, first, second):
    objective = PairwiseGradient(clip=clip)
    batch = prepared([[1.0], [0.0]])
    _, grad_bt = slopes(objective, [[moved[0]], [moved[1]]], batch)
    both = exp(moved[0] + moved[1])
    near(grad_bt, [[-both * first], [both * second]])
    logp_bt = f64([[moved[0] - 1], [moved[1] - 1]])
    metrics = objective(logp_bt, paired(batch, objective.pairs(batch))).metrics
    near(metrics["pair_clip_fraction"], [((not first) + (not second)) / 2])


def test_equal_rewards_make_no_pair():
    batch = small([0.1, 0.1, 0.1, 1.0], [3, 1, 2, 1], groups=[0, 0, 0, 1]).replace(
        advantage_bt=f64([[0.1, 0.1, 0.1], [0.1, 0, 0], [0.1, 0.1, 0], [1.0, 0, 0]])
    )
    assert PairwiseGradient().zero_rows(paired(batch, PairwiseGradient().pairs(batch))).all()
    assert not slopes(PairwiseGradient(), [[0.1] * 3, [0.2], [0.0] * 2, [0.0]], batch)[1].any()


# --- labels ---------------------------------------------------------------------------------------------------------

CORRECT = [True, False, False, False, True]


@pytest.mark.parametrize(
    ("size", "values"),
    [
        ("one", [1, -1, -1, -1]),
        ("balanced", [2, -2 / 3, -2 / 3, -2 / 3]),
        ("class_mean", [4, -4 / 3, -4 / 3, -4 / 3]),
        ("odds", [1, -1 / 3, -1 / 3, -1 / 3]),
    ],
)
def test_sizes_of_labels(size, values):
    batch = small([0.0] * 5, groups=[0, 0, 0, 0, 1], correct_b=CORRECT)
    near(Labels(size=size)(batch)[:, 0], [*map(float, values), 0.0])
    near(Labels(size=size, one_sided="one")(batch)[:, 0], [*map(float, values), 1.0])


def test_labels_outside_the_statistics_do_not_count():
    batch = small([0.0] * 3, correct_b=[True, False, False], stat_b=[True, True, False])
    near(Labels(size="balanced")(batch)[:, 0], [1.0, -1.0, 0.0])


def test_success_weights():
    batch = small([0.0] * 5, groups=[0, 0, 0, 0, 1], correct_b=CORRECT)
    near(SuccessWeight()(batch)[:, 0], [0.75] * 4 + [0.02])
    near(SuccessWeight(form="root_odds")(batch)[:, 0], [3**0.5] * 4 + [(0.02 / 0.98) ** 0.5])


def test_the_implied_negative_policy():
    """p = 1/4: wrong tokens have (1 - ρ/4)/(3/4), with the floor a straight-through gradient."""
    batch = prepared([[1.0], [-1 / 3], [-1 / 3]])
    shifts = [[0.2], [-0.3], [1.3]]
    loss_bt, grad_bt = slopes(ImplicitNegative(floor=0.25), shifts, batch)
    inside = (1 - exp(-0.3) / 4) / 0.75
    near(loss_bt, [[-0.2], [-log(inside)], [-log(0.25)]])
    near(grad_bt, [[-1.0], [exp(-0.3) / 3 / inside], [exp(1.3) / 3 / 0.25]])
    metrics = ImplicitNegative(floor=0.25)(f64(shifts) - 1, batch).metrics
    near(metrics["capped_fraction"], [[0.0], [0.0], [1.0]])
    _, half_bt = slopes(ImplicitNegative(floor=0.25, negative=0.5), shifts, batch)
    near(half_bt[1:], grad_bt[1:] / 2)


def test_classification_saturates():
    batch = prepared([[1.0], [-1.0]])
    near(slopes(Classify(), [[0.0], [0.0]], batch)[0], [[log(2)], [log(2)]])
    assert slopes(Classify(), [[30.0], [-30.0]], batch)[1].abs().max() < 1e-10
    _, wrong_bt = slopes(Classify(beta=2.0, center="none"), [[-30.0], [30.0]], batch)
    near(wrong_bt, [[-2.0], [2.0]], 1e-9)


def test_separation_weighs_hard_wrong_completions_most():
    batch = prepared([[3.0], [-1.5], [-1.5]])
    _, grad_bt = slopes(Separate(tau=0.5), [[0.0], [0.5], [-0.5]], batch)
    hard = 1 / (1 + exp(-2))
    near(grad_bt / 3, [[-1.0], [hard], [1 - hard]])
    _, mean_bt = slopes(Separate(tau=None), [[0.0], [0.5], [-0.5]], batch)
    near(mean_bt / 3, [[-1.0], [0.5], [0.5]])
    _, ratio_bt = slopes(Separate(score="ratio", tau=None), [[0.1], [0.5], [-0.5]], batch)
    near(ratio_bt / 3, [[-exp(0.1)], [0.5 * exp(0.5)], [0.5 * exp(-0.5)]])


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_the_constraint_is_a_squared_hinge(estimator):
    ready = prepared([[0.0, 0.0], [0.0]])
    ready = ready.replace(weight_bt=SequenceMean()(ready))
    term = KLConstraint(coef=10.0, limit=0.05, estimator=estimator)

    def at(shift: float) -> tuple[torch.Tensor, torch.Tensor]:
        logp_bt = f64([[shift - 1, -1.0], [-1.1, 0.0]]).requires_grad_()
        log_bt = (logp_bt - ready.old_bt) * ready.mask_bt
        k_bt = -log_bt if estimator == "k1" else log_bt.exp() - 1 - log_bt
        hinge = 5 * ((ready.weight_bt * k_bt).sum() - 0.05).clamp(min=0).square()
        ours = (ready.weight_bt * term(logp_bt, ready).loss_bt).sum()
        return torch.autograd.grad(ours, logp_bt)[0], torch.autograd.grad(hinge, logp_bt)[0]

    ours, hinge = at(-1.0)
    assert hinge.any()
    near(ours, hinge)
    assert not at(0.1)[0].any(), "inside the limit nothing pulls"


# --- words ----------------------------------------------------------------------------------------------------------

ONE = RunFacts(updates_per_rollout=1)
TWO = RunFacts(updates_per_rollout=2)
IDLE = [
    Regression(anchor="old"),
    GroupRegression(),
    RegionGradient(),
    PolicyDrift(),
    PairwiseGradient(),
    KLConstraint(),
]


@pytest.mark.parametrize("part", IDLE, ids=lambda p: p.name)
def test_parts_that_need_several_updates_say_so(part):
    assert part.idle(ONE)
    assert not part.idle(TWO)


def test_settings_without_effect_and_runs_that_cannot_work():
    assert "low" in PairwiseGradient(clip_low=0.1, clip="joint").idle(TWO)[0]
    assert not RegionGradient(region="none").idle(ONE)
    assert "negative" in ImplicitNegative(negative=0.0).idle(TWO)[0]
    assert "fewer than 3" in BalanceNegatives().idle(RunFacts(group_size=2))[0]
    for part in (PolicyDrift(coef=0.0), KLConstraint(coef=0.0)):
        assert "coefficient is 0" in part.idle(TWO)[0]
    lone = RunFacts(group_size=1)
    for part in (GroupRegression(), PairwiseGradient(), Classify(), Labels(), SoftBaseline()):
        assert "batch.group_size of 2" in part.refuse(lone)[0]
        assert not part.refuse(RunFacts(group_size=2))
    assert not Labels(one_sided="one").refuse(lone)
    for part in (Regression(anchor="ref"), GroupRegression(anchor="ref")):
        assert "reference" in part.refuse(RunFacts(has_reference=False))[0]
        assert part.needs() == ("ref_bt",)


def test_missing_fields_are_named():
    with pytest.raises(InputError, match="correct_b"):
        Labels()(small([1, 0]))
    with pytest.raises(InputError, match="ref_bt"):
        slopes(Regression(anchor="ref"), [[0.0]], prepared([[1.0]]))


def test_any_aggregation_takes_the_loss_of_a_completion():
    """At each token of a completion its loss counts, so a mean over its tokens is that loss."""
    batch = small([1, 0], [1, 3]).replace(advantage_bt=f64([[0.5, 0, 0], [-0.5] * 3]))
    assert Given()(batch) is batch.advantage_bt
    loss_bt = at_tokens(GroupRegression()(batch.old_bt, batch), batch)
    near((SequenceMean()(batch) * loss_bt).sum(), 0.25)
    near((TokenMean()(batch) * loss_bt).sum(), 0.25)
