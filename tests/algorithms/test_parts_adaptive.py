"""Adaptive clips and covariance parts: hand values, monotone searches, limits."""

from __future__ import annotations

from math import exp, log, sqrt

import pytest
import torch

from grouprl.algorithms.advantage.papers.token_relative import TokenRelative
from grouprl.algorithms.building import build_part
from grouprl.algorithms.objective.adaptive_clip import TurnClip, turn_log_ratio
from grouprl.algorithms.objective.covariance import ClipCov, covariance
from grouprl.algorithms.objective.objective import Clipped
from grouprl.algorithms.objective.papers.adaptive_clip import BalancedClip, DynamicClip, EntropyClip
from grouprl.algorithms.objective.papers.kl_cov import KLCov
from grouprl.algorithms.objective.ratio import log_ratio
from grouprl.algorithms.part import RunFacts
from grouprl.core.errors import InputError
from small import f64, near, prepared, slopes, small

# --- covariance ------------------------------------------------------------------------------------------------------


def many(n: int = 400) -> tuple:
    g = torch.Generator().manual_seed(1)
    adv = torch.randn(2, n, generator=g, dtype=torch.float64)
    batch = prepared(adv.tolist(), old_bt=(-3 * torch.rand(2, n, generator=g, dtype=torch.float64)).tolist())
    return batch, batch.old_bt + 0.1 * torch.randn(2, n, generator=g, dtype=torch.float64)


def test_covariance_by_hand():
    batch = prepared([[1.0, 0.0], [-1.0]])
    near(covariance(f64([[-1.0, -2.0], [-3.0, 99.0]]), batch), [[1.0, 0.0], [1.0, 0.0]])


def test_clip_cov_samples_the_promised_number_within_its_bounds():
    batch, logp_bt = many()
    out = ClipCov(share=0.01, lower=0.2, upper=1.0)(logp_bt, batch)
    sampled_bt = out.metrics["covariance_fraction"].bool()
    assert int(sampled_bt.sum()) == 8
    cov_bt = covariance(logp_bt, batch)
    assert ((cov_bt > 0.2) & (cov_bt < 1.0))[sampled_bt].all()
    assert not out.loss_bt[sampled_bt].any()
    plain = Clipped(clip_low=1.0, clip_high=1.0)(logp_bt, batch).loss_bt
    near(out.loss_bt[~sampled_bt], plain[~sampled_bt])
    again = ClipCov(share=0.01, lower=0.2, upper=1.0)(logp_bt + 1e-3, batch).metrics["covariance_fraction"]
    assert not torch.equal(again.bool(), sampled_bt)


def test_without_candidates_nothing_is_sampled_and_clipped_tokens_are_none():
    batch, logp_bt = many()
    near(
        ClipCov(lower=50.0, upper=60.0)(logp_bt, batch).loss_bt,
        Clipped(clip_low=1.0, clip_high=1.0)(logp_bt, batch).loss_bt,
    )
    tight = ClipCov(clip_low=0.0, clip_high=0.001, share=1.0, lower=-9.0, upper=9.0)(logp_bt, batch)
    assert not (tight.metrics["covariance_fraction"] * tight.metrics["clip_fraction"]).any()
    with pytest.raises(InputError, match="interval"):
        build_part("objective", "clip_cov", {"lower": 2.0, "upper": 1.0})


def test_kl_cov_takes_exactly_the_largest():
    batch, logp_bt = many()
    out = KLCov(share=0.05)(logp_bt, batch)
    chosen_bt = out.metrics["covariance_fraction"].bool()
    assert int(chosen_bt.sum()) == 40
    cov_bt = covariance(logp_bt, batch)
    assert cov_bt[chosen_bt].min() >= cov_bt[~chosen_bt].max()
    near(
        (out.loss_bt + batch.advantage_bt * (logp_bt - batch.old_bt).exp())[chosen_bt],
        (logp_bt - batch.old_bt).abs()[chosen_bt],
    )


def test_kl_cov_is_flat_at_the_first_update_and_takes_one_token_of_equals():
    batch = prepared([[0.0, 0.0], [0.0]])
    loss_bt, grad_bt = slopes(KLCov(), [[0.0, 0.0], [0.0]], batch)
    assert not loss_bt.any()
    assert not grad_bt.any()
    assert KLCov()(batch.old_bt, batch).metrics["covariance_fraction"].sum() == 1
    assert KLCov().idle(RunFacts(updates_per_rollout=1))
    assert KLCov().idle(RunFacts(updates_per_rollout=2)) == []


# --- dynamic clip ----------------------------------------------------------------------------------------------------


def test_bounds_of_the_dynamic_clip():
    low_bt, high_bt = DynamicClip().bounds(f64([log(0.9), log(0.01), 0.0, -300.0]))
    near(low_bt, [0.5 + 0.5 * sqrt(1 - 0.64 / 0.9), 0.5, 0.8, 0.5])
    near(high_bt, [0.5 + 0.5 * sqrt(1 + 0.8 / 0.9), 5.0, 0.5 + 0.5 * sqrt(1.8), 10.0])
    near(low_bt[:1], [0.769], 1e-3)
    near(high_bt[:2], [1.187, 5.0], 1e-3)


def test_at_its_bounds_the_dynamic_clip_moves_the_probability_by_epsilon():
    q = f64([0.05, 0.3, 0.7, 0.95])
    low_bt, high_bt = DynamicClip(clip_low=0.01, clip_high=0.2).bounds(q.log())
    near((high_bt - 1) * high_bt * q, [0.2] * 4)
    near((1 - low_bt) * low_bt * q, [0.01] * 4)


def test_a_token_at_its_bound_keeps_its_whole_gradient():
    _, grad_bt = slopes(DynamicClip(clip_low=0.0), [[0.0]], prepared([[-1.0]], old_bt=[[0.0]]))
    near(grad_bt, [[1.0]])


# --- balanced clip ---------------------------------------------------------------------------------------------------


def bounds(part: BalancedClip, advantages, log_ratio_bt) -> tuple[float, float]:
    batch = prepared(advantages, behavior_bt=[[-1.0] * len(row) for row in advantages])
    return part.search(f64(log_ratio_bt).exp(), batch)


def test_the_balanced_search():
    rare = ([[1.0, -1.0, -1.0, -1.0]], [[2.0, 0.0, 0.0, 0.0]])
    assert bounds(BalancedClip(target=0.0), *rare) == (0.6, 1.2)
    assert bounds(BalancedClip(target=0.4), *rare) == pytest.approx((0.6, 2.0))  # 2/(2 + 3) = 0.4
    assert bounds(BalancedClip(target=0.9), *rare) == pytest.approx((0.9, 3.0))
    assert bounds(BalancedClip(target=1.0), [[1.0, 2.0]], [[0.0, 0.0]]) == (0.6, 1.2)
    assert bounds(BalancedClip(), [[0.0, 0.0]], [[0.0, 0.0]]) == (0.6, 1.2)
    with pytest.raises(InputError, match="only raises"):
        build_part("objective", "balanced_clip", {"low_start": 0.9, "low_end": 0.6})


def test_a_higher_target_never_lowers_the_upper_bound():
    g = torch.Generator().manual_seed(2)
    adv = torch.randn(1, 60, generator=g, dtype=torch.float64).tolist()
    log_bt = torch.randn(1, 60, generator=g, dtype=torch.float64).tolist()
    highs = [bounds(BalancedClip(target=t / 100), adv, log_bt)[1] for t in range(101)]
    assert highs == sorted(highs)
    assert len(set(highs)) > 3


def test_unlikely_tokens_weigh_less_in_the_balance():
    batch = prepared([[1.0, -1.0]], behavior_bt=[[-5.0, 0.0]])
    assert BalancedClip().search(f64([[1.0, 1.0]]), batch)[1] > 1.2
    assert BalancedClip().search(f64([[1.0, 1.0]]), batch.replace(behavior_bt=f64([[0.0, -5.0]])))[1] == 1.2


def test_with_fixed_bounds_it_is_the_clip():
    batch, logp_bt = many()
    batch = batch.replace(behavior_bt=batch.old_bt)
    fixed = BalancedClip(target=0.0, low_start=0.8, high_start=1.28, dual_clip=3.0)(logp_bt, batch)
    near(fixed.loss_bt, Clipped(clip_low=0.2, clip_high=0.28, dual_clip=3.0)(logp_bt, batch).loss_bt)


# --- entropy clip ----------------------------------------------------------------------------------------------------


def entropy_batch(logs: list[float], advantages: list[float]):
    return prepared([advantages], entropy_bt=[[exp(x) for x in logs]])


def test_the_entropy_score_by_hand_and_as_released():
    batch = entropy_batch([1.0, 0.0, -2.0, -1.0, 0.0, 0.0], [1.0] * 6)
    near(EntropyClip().score(batch), [[1.0, 0.0, -1.0, -0.5, 0.0, 0.0]])
    near(EntropyClip(released=True).score(batch), [[1.0, 0.0, 1.0, 0.5, 0.0, 0.0]])
    near(EntropyClip().score(entropy_batch([0.3] * 4, [1.0] * 4)), [[0.0] * 4])


def test_equal_entropies_give_the_plain_clip():
    batch, logp_bt = many()
    batch = batch.replace(entropy_bt=torch.full_like(batch.old_bt, 0.7))
    near(EntropyClip(dual_clip=3.0)(logp_bt, batch).loss_bt, Clipped(dual_clip=3.0)(logp_bt, batch).loss_bt)


@pytest.mark.parametrize(
    ("score", "advantage", "log_ratio_t", "slope"),
    [
        (1.0, 1.0, log(1.35), -2 * 1.35),  # uncertain, moved beyond 1.2: doubled; the bound is 1.4
        (1.0, 1.0, log(1.45), 0.0),
        (1.0, 1.0, log(1.1), -1.1),  # uncertain, at rest: unchanged
        (-1.0, -1.0, log(0.7), 0.7),  # certain, moved below 0.8: unchanged; the bound is 0.6
        (-1.0, -1.0, log(0.55), 0.0),
        (-1.0, -1.0, log(0.9), 0.0),  # certain, at rest: A·(1 - 1)
        (-0.5, 1.0, 0.0, -0.5),
    ],
)
def test_bounds_and_advantages_follow_the_entropy(score, advantage, log_ratio_t, slope):
    logs = [score, 1.0, 0.0, 0.0, 0.0, -1.0] if score < 0 else [1.0, 0.0, 0.0, 0.0, 0.0, -1.0]
    batch = entropy_batch(logs, [advantage, 0.0, 0.0, 0.0, 0.0, 0.0])
    _, grad_bt = slopes(EntropyClip(), [[log_ratio_t, 0.0, 0.0, 0.0, 0.0, 0.0]], batch)
    near(grad_bt[0, 0], slope)


def test_advantages_over_tokens_sum_to_zero():
    batch = small([1, 0, 0, 2, 5, 5], [3, 1, 2, 2, 1, 3], groups=[0, 0, 0, 0, 1, 1])
    adv_bt = TokenRelative()(batch)
    near(adv_bt[:4].sum(), 0.0)
    assert not adv_bt[4:].any()
    near(adv_bt[:4][batch.mask_bt[:4]].square().mean().sqrt(), 1.0, 1e-5)


def test_a_group_with_a_large_advantage_falls_back_to_grpo():
    batch = small([1, 0], [1, 30], groups=[0, 0])
    free, held = TokenRelative(limit=None)(batch), TokenRelative(limit=5.0)(batch)
    near(free[0, 0], sqrt(30), 1e-3)
    near(held[:, 0], [0.5 / (sqrt(0.5) + 1e-6), -0.5 / (sqrt(0.5) + 1e-6)])


# --- turns -----------------------------------------------------------------------------------------------------------


def test_turn_ratios_are_means_within_turns():
    batch = prepared([[1.0, 1.0, 1.0], [1.0]], turn_bt=torch.tensor([[0, 0, 1], [0, -1, -1]]))
    logp_bt = batch.old_bt + f64([[0.1, 0.3, -0.4], [0.5, 9.0, 9.0]])
    near(turn_log_ratio(logp_bt, batch), [[0.2, 0.2, -0.4], [0.5, 0.0, 0.0]])
    one = batch.replace(turn_bt=torch.where(batch.mask_bt, 0, -1))
    near(turn_log_ratio(logp_bt, one), log_ratio(logp_bt, batch, "sequence"))
    each = batch.replace(turn_bt=torch.where(batch.mask_bt, torch.arange(3), -1))
    near(turn_log_ratio(logp_bt, each), log_ratio(logp_bt, batch, "token"))


def test_each_token_of_a_turn_gets_its_mean_advantage():
    batch = prepared([[1.0, 3.0, -2.0]], turn_bt=torch.tensor([[0, 0, 1]]))
    _, grad_bt = slopes(TurnClip(), [[0.1, -0.1, 0.0]], batch)
    near(grad_bt, [[-2.0, -2.0, 2.0]])
    _, grad_bt = slopes(TurnClip(), [[0.4, 0.2, 0.0]], batch)
    near(grad_bt, [[0.0, 0.0, 2.0]])


def test_clips_that_cannot_act_are_named():
    once, twice = RunFacts(updates_per_rollout=1), RunFacts(updates_per_rollout=2)
    for part in (DynamicClip(), BalancedClip(), TurnClip()):
        assert "cannot act" in part.idle(once)[0]
        assert part.idle(twice) == []
