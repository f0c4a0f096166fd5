"""Parts that came from peers' code, held against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

import grouprl
from batches import random_case
from grouprl.algorithms.advantage.decoupled_components import DecoupledComponents
from grouprl.algorithms.advantage.papers.best_of_group import BestOverSecond
from grouprl.algorithms.advantage.papers.token_baseline import TokenBaseline
from grouprl.algorithms.building import build_part
from grouprl.algorithms.filter.mismatch_rejection import MismatchRejection
from grouprl.algorithms.objective.papers.divergence_mask import DivergenceMask, binary_kl
from grouprl.algorithms.objective.papers.gamma_weight import GammaWeight
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.regularize.kl import estimate
from grouprl.algorithms.regularize.regularize import EntropyBonus, KLLoss
from grouprl.algorithms.reward_transform.reward_transform import RewardClip
from grouprl.core.errors import InputError
from grouprl.policy.language.statistics import collision
from small import f64, prepared, slopes, small

# --- VESPO ----------------------------------------------------------------------------------------------------------


def test_gamma_weight_is_one_at_one_and_largest_at_k_over_lambda():
    part = GammaWeight(k_positive=2.0, lambda_positive=4.0)
    batch = prepared([[1.0]])
    weights = [float(-slopes(part, [[math.log(w)]], batch)[1][0, 0]) for w in (0.25, 0.5, 1.0, 2.0)]
    assert weights[2] == pytest.approx(1.0)
    assert weights[1] == pytest.approx(0.25 * math.exp(2.0)), "0.5² e^(4·0.5)"
    assert max(weights) == weights[1]


def test_gamma_weight_reads_the_whole_completion():
    part = GammaWeight()
    apart = slopes(part, [[0.3, 0.2]], prepared([[1.0, 1.0]]))[1]
    whole = slopes(part, [[0.5]], prepared([[1.0]]))[1]
    assert apart[0].tolist() == pytest.approx([float(whole[0, 0])] * 2)


def test_gamma_weight_dies_out_far_away():
    for far in (-50.0, 50.0):
        assert slopes(GammaWeight(), [[far]], prepared([[1.0]]))[1].abs().max() < 1e-6


# --- DPPO -----------------------------------------------------------------------------------------------------------


def test_binary_kl_of_known_probabilities():
    half, fifth = f64([[math.log(0.5)]]), f64([[math.log(0.2)]])
    want = 0.5 * math.log(0.5 / 0.2) + 0.5 * math.log(0.5 / 0.8)
    assert float(binary_kl(fifth, half)) == pytest.approx(want, abs=1e-7)
    assert float(binary_kl(half, half)) == 0


def test_divergence_mask_judges_probabilities_not_ratios():
    batch = prepared([[1.0], [1.0], [-1.0]], old_bt=[[math.log(0.01)], [math.log(0.5)], [math.log(0.5)]])
    moved = [[math.log(5.0)], [math.log(1.4)], [math.log(0.6)]]
    grad_bt = slopes(DivergenceMask(clip_low=0.15, clip_high=0.15, cap=None), moved, batch)[1]
    assert grad_bt[0, 0] == pytest.approx(-5.0), "0.01 to 0.05: a ratio of 5, but 0.04 of probability"
    assert not grad_bt[1:].any(), "0.5 to 0.7 and 0.5 to 0.3 have moved by 0.2"
    against = slopes(DivergenceMask(), [[0.0], [math.log(0.6)], [math.log(1.4)]], batch)[1]
    assert against.ne(0).all(), "the other way is free"


def test_divergence_mask_caps_what_is_left():
    batch = prepared([[-1.0]], old_bt=[[math.log(0.01)]])
    grad_bt = slopes(DivergenceMask(cap=3.0), [[math.log(20.0)]], batch)[1]
    assert float(grad_bt) == pytest.approx(3.0)


# --- pass@k ---------------------------------------------------------------------------------------------------------


def test_only_the_best_of_a_group_is_credited():
    batch = small([1.0, 0.25, 0.0, 3.0, 3.0, 2.0, 7.0], groups=[0, 0, 0, 1, 1, 1, 2])
    assert BestOverSecond(scale="none")(batch)[:, 0].tolist() == [0.75, 0, 0, 0, 0, 0, 0]
    std = math.sqrt(((1 - 1.25 / 3) ** 2 + (0.25 - 1.25 / 3) ** 2 + (1.25 / 3) ** 2) / 2)
    assert float(BestOverSecond(eps=0.0)(batch)[0, 0]) == pytest.approx(0.75 / std)


def test_rows_out_of_the_statistics_are_nobodys_rivals():
    batch = small([1.0, 0.9, 0.5]).replace(stat_b=torch.tensor([True, False, True]))
    assert BestOverSecond(scale="none")(batch)[:, 0].tolist() == [0.5, 0, 0]


# --- GDPO -----------------------------------------------------------------------------------------------------------


def test_each_component_has_its_own_spread():
    batch = small([0.0] * 2).replace(rewards={"big": f64([100.0, 0.0]), "small": f64([0.0, 0.01])})
    adv_bt = DecoupledComponents(eps=0.0)(batch)
    assert adv_bt[:, 0].tolist() == pytest.approx([0.0, 0.0]), "in a plain sum the big one would decide"
    doubled = DecoupledComponents(weights={"big": 1.0, "small": 2.0}, eps=0.0)(batch)
    assert doubled[:, 0].tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])


def test_components_are_scale_free_and_missing_ones_add_nothing():
    a, b = f64([1.0, 0.0, 0.5]), f64([2.0, 3.0, 7.0])
    one = DecoupledComponents(eps=0.0)(small([0.0] * 3).replace(rewards={"a": a, "b": b}))
    other = DecoupledComponents(eps=0.0)(small([0.0] * 3).replace(rewards={"a": 9 * a + 1, "b": b - 4}))
    torch.testing.assert_close(one, other)
    missing = f64([2.0, math.nan, 3.0])
    got = DecoupledComponents(eps=0.0)(small([0.0] * 3).replace(rewards={"b": missing}))
    assert got[:, 0].tolist() == pytest.approx([-math.sqrt(0.5), 0.0, math.sqrt(0.5)])
    flat = DecoupledComponents()(small([0.0] * 3).replace(rewards={"b": f64([2.0] * 3)}))
    assert not flat.any()


def test_a_component_that_is_not_there_is_named():
    with pytest.raises(InputError, match=r"batch\.rewards\.c"):
        DecoupledComponents(weights={"c": 1.0})(small([0.0, 1.0]).replace(rewards={"a": f64([1.0, 0.0])}))
    plain = DecoupledComponents(eps=0.0)(small([0.0, 1.0]))
    assert plain[:, 0].tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)]), "the reward is its own component"


# --- optimal token baseline -----------------------------------------------------------------------------------------


def test_the_token_baseline_by_hand():
    old = [[math.log(0.5), math.log(0.5)], [math.log(0.25), math.log(0.5)], [math.log(0.5)]]
    batch = small(
        [1.0, 0.0, 4.0], [2, 2, 1], old_bt=old, stats={"collision": f64([[0.5, 0.5], [0.5, 0.5], [0.5, 0.0]])}
    )
    adv_bt = TokenBaseline(eps=0.0)(batch)
    first = (1 * 0.5 + 0 * 1.0 + 4 * 0.5) / 2.0
    second = (1 * 1.0 + 0 * 1.5) / 2.5
    assert adv_bt[0].tolist() == pytest.approx([1 - first, 1 - second])
    assert adv_bt[1].tolist() == pytest.approx([-first, -second])
    assert adv_bt[2].tolist() == pytest.approx([4 - first, 0.0])


def test_equal_energies_make_the_token_baseline_the_group_mean():
    batch = small([1.0, 0.0, 0.5], [3, 3, 3], stats={"collision": torch.full((3, 3), 0.4, dtype=torch.float64)})
    adv_bt = TokenBaseline(eps=0.0)(batch)
    torch.testing.assert_close(adv_bt, (batch.reward_b - 0.5)[:, None].expand(3, 3))


def test_collision_of_known_distributions():
    logp_cv = f64([[0.5, 0.3, 0.2], [1 / 3] * 3]).log()
    assert collision(logp_cv, torch.zeros(2)).tolist() == pytest.approx([0.38, 1 / 3])


# --- rejection ------------------------------------------------------------------------------------------------------


def mismatched(*log_ratio: list[float]) -> grouprl.Batch:
    """old - behavior is `log_ratio`."""
    batch = small([0.0] * len(log_ratio), [len(row) for row in log_ratio])
    shift_bt = torch.zeros_like(batch.old_bt)
    for i, row in enumerate(log_ratio):
        shift_bt[i, : len(row)] = f64(row)
    return batch.replace(behavior_bt=batch.old_bt - shift_bt)


@pytest.mark.parametrize(
    ("part", "kept"),
    [
        (MismatchRejection(over="token", statistic="k2", high=0.1), [[True, False], [True, True]]),
        (MismatchRejection(over="token", statistic="k1", high=1.5), [[True, False], [True, True]]),
        (MismatchRejection(over="sequence_max", statistic="k2", high=0.1), [[False, False], [True, True]]),
        (MismatchRejection(over="sequence_sum", statistic="k1", high=1.5), [[False, False], [True, True]]),
        (MismatchRejection(over="sequence_mean", statistic="k1", high=1.5), [[True, True], [True, True]]),
        (MismatchRejection(over="sequence_mean", statistic="k3", high=0.1), [[False, False], [True, True]]),
    ],
)
def test_what_is_rejected(part, kept):
    """d = (0, -0.6) and (0.3, -0.3): k2 is 0 and 0.18, 0.045 twice; for k3 0.8 in its place: 0.4255 halved."""
    batch = mismatched([0.0, -0.6], [0.3, -0.3])
    if part.statistic == "k3":
        batch = mismatched([0.0, 0.8], [0.3, -0.3])
    assert part(batch).loss_mask_bt.tolist() == kept
    assert part(batch).stats_b.all()


@pytest.mark.parametrize(
    "settings",
    [{"statistic": "k2", "low": 0.1}, {"statistic": "k1", "over": "sequence_max"}, {"low": 3.0, "high": 2.0}],
)
def test_rejections_without_meaning_are_refused(settings):
    with pytest.raises(InputError, match="mismatch_rejection"):
        build_part("filter", "mismatch_rejection", settings)


# --- terms with means of their own, estimators, reward clip -----------------------------------------------------------


def test_a_term_adds_up_by_its_own_mean():
    case = random_case(3)
    plain = grouprl.method("dr_grpo")
    kl = KLLoss(coef=0.5, estimator="k2", aggregate="sequence_mean")
    with_kl = plain.with_parts(regularize=(kl,))
    both = [m.loss(case.logp_bt, m.prepare(case.batch)).value for m in (with_kl, plain)]
    half_bt = 0.25 * (case.logp_bt - case.batch.ref_bt).square() * case.batch.mask_bt
    want = (half_bt.sum(1) / case.batch.length_b).mean()
    torch.testing.assert_close(both[0] - both[1], want)


def test_two_terms_with_different_means_do_not_meet():
    case = random_case(4)
    terms = (KLLoss(coef=0.1, aggregate="token_mean"), EntropyBonus(coef=0.2, aggregate="sequence_sum"))
    method = grouprl.method("grpo").with_parts(regularize=terms)
    ready, plain = method.prepare(case.batch), grouprl.method("grpo")
    value = (
        method.loss(case.logp_bt, ready, case.entropy_bt).value
        - plain.loss(case.logp_bt, plain.prepare(case.batch)).value
    )
    mask_bt, log_bt = case.batch.mask_bt, case.logp_bt - case.batch.ref_bt
    kl = (torch.expm1(-log_bt) + log_bt)[mask_bt].mean() * 0.1
    bonus = 0.2 * (case.entropy_bt * mask_bt).sum(1).mean()
    torch.testing.assert_close(value, kl - bonus)


def test_the_bias_correction_of_whole_completions():
    case = random_case(5, drift=0.3)
    term = KLLoss(coef=1.0, estimator="weighted_k3", ratio="sequence")
    got_bt = term(case.logp_bt, case.batch).loss_bt
    mask_bt = case.batch.mask_bt
    ratio_b = (((case.logp_bt - case.batch.old_bt) * mask_bt).sum(1) / case.batch.length_b).exp()
    log_bt = torch.where(mask_bt, case.logp_bt - case.batch.ref_bt, 0)
    torch.testing.assert_close(got_bt, ratio_b[:, None] * (torch.expm1(-log_bt) + log_bt))
    assert KLLoss(estimator="k3", ratio="sequence").idle(RunFacts(updates_per_rollout=2))


def test_the_straight_through_of_abs():
    d = f64([[-0.5, 0.25]]).requires_grad_()
    value = estimate(d, "abs+")
    assert value.tolist() == [[0.5, 0.25]]
    assert torch.autograd.grad(value.sum(), d)[0].tolist() == [[-0.5, 0.25]]


def test_a_reward_clip_with_two_bounds():
    batch = small([-3.0, 0.5, 9.0])
    assert RewardClip(low=-1.0, limit=5.0)(batch).reward_b.tolist() == [-1.0, 0.5, 5.0]
    assert RewardClip(limit=2.0)(batch).reward_b.tolist() == [-2.0, 0.5, 2.0]
    assert grouprl.method("reinforce_pp", reward_clip=(-1.0, 5.0)).reward_transform == (
        RewardClip(low=-1.0, limit=5.0),
    )
    with pytest.raises(InputError, match="Low must be below limit"):
        grouprl.method("reinforce_pp", reward_clip=(5.0, 5.0))
