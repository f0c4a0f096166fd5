"""Rules of methods whose papers could be checked in part: ratios, clips, masks and weights of tokens off the policy.

Expected numbers are computed here from the written facts, in plain Python.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest
import torch

import grouprl
from facts import centred, ppo, slope, standardised, still
from small import near, small

RATIOS = [0.02, 0.5, 0.9, 1.0, 1.1, 1.3, 2.0, 8.0]
every_ratio = pytest.mark.parametrize("ratio", RATIOS)

# --- CISPO, 291 ScaleRL -----------------------------------------------------------------------------------------------


@every_ratio
def test_cispo_caps_the_weight_and_keeps_every_gradient(ratio: float) -> None:
    """-sg[min(ρ, 5)]·A·log π, a mean over all tokens; effectively no lower bound, no KL."""
    method, log = grouprl.method("cispo"), math.log(ratio)
    _, grad_bt, _ = slope(method, small([1, 0], [2, 1]), [[log, 0.0], [log]])
    (a, b), weight = standardised([1, 0]), min(ratio, 5.0)
    near(grad_bt, [[-weight * a / 3, -a / 3], [-weight * b / 3, 0.0]])
    assert method.regularize == ()


def test_cispo_with_the_other_convention_bounds_both_sides() -> None:
    method = grouprl.method("cispo", floor=0.8, cap=1.28)
    _, grad_bt, _ = slope(method, small([1, 0]), [[math.log(0.5)], [math.log(3)]])
    a, b = standardised([1, 0])
    near(grad_bt, [[-0.8 * a / 2], [-1.28 * b / 2]])


def test_scalerl_centres_by_group_scales_by_batch_and_means_over_prompts() -> None:
    """A = (R - mean_g)/std_B of the centred rewards; ratios to the sampler; groups without spread leave the batch."""
    rewards, lengths = [[1, -1], [1, -1, -1], [1, 1]], [[1, 3], [1, 1, 2], [4, 1]]
    flat, groups = [r for g in rewards for r in g], [0, 0, 1, 1, 1, 2, 2]
    batch = small(flat, [n for g in lengths for n in g], groups)
    batch = batch.replace(behavior_bt=batch.old_bt)
    moved = [[0.1] * 4, [2.0] * 4, [0.0] * 4, [-0.3] * 4, [0.2] * 4, [0.0] * 4, [0.0] * 4]
    _, grad_bt, _ = slope(grouprl.method("scalerl"), batch, moved, "behavior_bt")
    kept = [a for g in rewards[:2] for a in centred(g)]
    adv = [a / (statistics.stdev(kept) + 1e-6) for a in kept]
    tokens = [4, 4, 4, 4, 4]  # tokens of the prompt's group; two prompts are left
    expected = [-min(math.exp(m[0]), 5) * a / n / 2 for m, a, n in zip(moved, adv, tokens, strict=False)]
    near(grad_bt[:5, 0], expected)
    near(grad_bt[5:], [[0.0] * 4] * 2)


# --- LUSPO, VESPO -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moved", [[0.0, 0.0, 0.0], [0.003, 0.001, 0.002], [0.01, -0.001, 0.0], [-0.02, 0.0, 0.0]])
def test_luspo_is_gspo_times_the_length(moved: list[float]) -> None:
    """-|y| min(s A, clip(s, 1 - 2e-3, 1 + 2.5e-3)A), s the geometric mean; each token carries s·A/|y| of it."""
    batch = small([1, 0], [3, 1])
    _, grad_bt, _ = slope(grouprl.method("luspo"), batch, [moved, [0.0]])
    s = math.exp(statistics.fmean(moved))
    a, b = standardised([1, 0])
    near(grad_bt, [[3 * ppo(a, s, 0.998, 1.0025) / 3 / 2] * 3, [-b / 2, 0, 0]])


@pytest.mark.parametrize("moved", [[0.0, 0.0], [0.4, 0.3], [-0.2, -0.9], [1.0, 1.5]])
def test_vespo_weighs_whole_completions(moved: list[float]) -> None:
    """e^λ w^k e^(-λw), w = exp(Σ log ρ): (k, λ) = (2, 3) for A ≥ 0 and (3, 2) for A < 0; detached; token mean."""
    _, grad_bt, _ = slope(grouprl.method("vespo"), small([1, 0], [2, 2]), [moved, moved])
    w = math.exp(sum(moved))
    up, down = (math.exp(lam) * w**k * math.exp(-lam * w) for k, lam in ((2, 3), (3, 2)))
    a, b = standardised([1, 0])
    near(grad_bt, [[-up * a / 4] * 2, [-down * b / 4] * 2])


# --- DPPO, prime-rl's mask --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("new", [0.02, 0.3, 0.45, 0.6, 0.66, 0.9, 0.99])
def test_dppo_drops_tokens_by_how_far_their_probability_moved(old: float, new: float) -> None:
    """Dropped: π - π_old > 0.15 where A > 0, π_old - π > 0.15 elsewhere; the rest weighs sg[min(ρ, 20)]; B·Lmax."""
    batch = small([1, 0], old_bt=[[math.log(old)]] * 2, max_length=4)
    move = math.log(new / old)
    _, grad_bt, _ = slope(grouprl.method("dppo"), batch, [[move]] * 2)
    a, b = centred([1, 0])
    weight = min(new / old, 20)
    up = 0 if new - old > 0.15 else -weight * a
    down = 0 if old - new > 0.15 else -weight * b
    near(grad_bt, [[up / 8], [down / 8]])


@pytest.mark.parametrize(("old", "new"), [(0.5, 0.55), (0.5, 0.9), (0.9, 0.5), (0.3, 0.29), (0.05, 0.4)])
def test_dppo_kl_drops_tokens_by_the_kl_of_two_outcomes(old: float, new: float) -> None:
    """KL(old || new) of "this token or another", only against the direction of the advantage."""
    method = grouprl.method("dppo", divergence="kl", clip_low=0.05, clip_high=0.05)
    batch = small([1, 0], old_bt=[[math.log(old)]] * 2, max_length=1)
    _, grad_bt, _ = slope(method, batch, [[math.log(new / old)]] * 2)
    kl = old * math.log(old / new) + (1 - old) * math.log((1 - old) / (1 - new))
    a, b = centred([1, 0])
    up = 0 if new > old and kl > 0.05 else -new / old * a
    down = 0 if new < old and kl > 0.05 else -new / old * b
    near(grad_bt, [[up / 2], [down / 2]])


@pytest.mark.parametrize("old", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("new", [0.05, 0.31, 0.69, 0.75, 0.95])
def test_dppo_mask_is_prime_rls_loss(old: float, new: float) -> None:
    """keep·A·w without a clip, dropped beyond ±0.2 of probability in A's direction, + 1e-3·(log w)² on all tokens."""
    batch = small([1, 0], old_bt=[[math.log(old)]] * 2)
    batch = batch.replace(behavior_bt=batch.old_bt)
    log = math.log(new / old)
    _, grad_bt, _ = slope(grouprl.method("dppo_mask"), batch, [[log]] * 2, "behavior_bt")
    a, b = centred([1, 0])
    up = 0 if new - old > 0.2 else -new / old * a
    down = 0 if new - old < -0.2 else -new / old * b
    near(grad_bt, [[(x + 2e-3 * log) / 2] for x in (up, down)])


# --- DAPO of verl -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.25, 1.3, 9.0, 11.0])
def test_dapo_verl_has_clip_higher_and_a_dual_clip_at_10(ratio: float) -> None:
    """min(max(-Aρ, -A clip(ρ, 0.8, 1.28)), -10A) where A < 0; token mean; population of one group by n - 1."""
    batch, log = small([1, 0], [2, 1], max_length=100).replace(correct_b=torch.tensor([True, False])), math.log(ratio)
    _, grad_bt, _ = slope(grouprl.method("dapo@verl"), batch, [[log, 0], [log]])
    a, b = standardised([1, 0])
    down = 0.0 if ratio > 10 else ppo(b, ratio, 0.8, 1.28)
    near(grad_bt, [[ppo(a, ratio, 0.8, 1.28) / 3, -a / 3], [down / 3, 0.0]])


@pytest.mark.parametrize(("length", "penalty"), [(4, 0.0), (8, 0.0), (9, -0.5), (10, -1.0)])
def test_dapo_verl_punishes_the_last_fifth_of_the_length(length: int, penalty: float) -> None:
    """min(0, -(|y| - (Lmax - buffer))/buffer) with a buffer of 0.2·Lmax: here 2 of 10 tokens."""
    batch = small([1, 0], [length, 1], max_length=10).replace(correct_b=torch.tensor([True, False]))
    near(grouprl.method("dapo@verl").prepare(batch).reward_b, [1 + penalty, 0.0])


# --- decoupled PPO, M2PO ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gap", [0.0, 0.5, -1.0, 1.7])
@pytest.mark.parametrize("move", [0.0, 0.1, 0.3, -0.5])
def test_decoupled_ppo_clips_around_the_update_and_weighs_by_the_behavior(gap: float, move: float) -> None:
    """w·min(ρA, clip(ρ)A), ρ = π/π_prox, w = π_prox/π_b, left out above 5; the original number of tokens divides."""
    batch = small([1, 0], [2, 1]).replace(behavior_bt=torch.full((2, 2), -1.0 - gap, dtype=torch.float64))
    _, grad_bt, _ = slope(grouprl.method("decoupled_ppo"), batch, [[move, move], [move]])
    (a, b), w = standardised([1, 0]), math.exp(gap)
    w = 0.0 if w > 5 else w
    near(grad_bt, [[w * ppo(a, math.exp(move), 0.8, 1.2) / 3] * 2, [w * ppo(b, math.exp(move), 0.8, 1.2) / 3, 0]])


@pytest.mark.parametrize(
    ("behavior", "now", "first"),
    [(0.2, 0.5, 1.0), (0.5, 0.2, 0.4), (0.3, 0.3, 1.0)],
)
@pytest.mark.parametrize("move", [-0.3, -0.1, 0.0, 0.1, 0.3])
def test_a_behaviour_weight_capped_at_1_is_the_delay_adapted_ratio(
    behavior: float, now: float, first: float, move: float
) -> None:
    """ρ = π/max(π_b, π_now) begins at min(1, π_now/π_b), and the clip is around this: arXiv:2305.07911.

    What has become likelier since it was sampled is not weighted up; what has become less likely is weighted down.
    """
    batch = small([1, 0])
    old_bt, behavior_bt = (torch.full_like(batch.old_bt, math.log(p)) for p in (now, behavior))
    method = grouprl.method("decoupled_ppo", cap=1, beyond="truncate", scale="none")
    batch = batch.replace(old_bt=old_bt, behavior_bt=behavior_bt)
    _, grad_bt, _ = slope(method, batch, [[move], [move]])
    ratio = now * math.exp(move) / max(behavior, now)
    assert ratio == pytest.approx(first * math.exp(move))
    inside = [ratio < first * 1.2, ratio > first * 0.8]  # of a good action, and of a bad one
    near(grad_bt, [[-0.5 * ratio / 2 * inside[0]], [0.5 * ratio / 2 * inside[1]]])


@pytest.mark.parametrize(("version", "step"), [(3, 3), (2, 3), (0, 3)])
def test_decoupled_ppo_interpolates_the_proximal_policy(version: int, step: int) -> None:
    """log π_prox = log π_b + α(log π - log π_b), α = (v_prox - v_b)/(v_θ - v_b), v_prox the step, v_θ the next one."""
    batch = small([1, 0]).replace(version_bt=torch.full((2, 1), version), step=step)
    batch = batch.replace(behavior_bt=batch.old_bt)
    move = 0.3
    method = grouprl.method("decoupled_ppo", proximal="interpolated")
    _, grad_bt, _ = slope(method, batch, [[move], [move]], "behavior_bt")
    alpha = (step - version) / (step + 1 - version)
    ratio, w = math.exp((1 - alpha) * move), math.exp(alpha * move)
    near(grad_bt, [[w * ppo(a, ratio, 0.8, 1.2) / 2] for a in standardised([1, 0])])


def m2_kept(squares: Sequence[float], threshold: float) -> list[bool]:
    """Drop the largest square until the mean of the rest is at most the threshold."""
    kept = list(range(len(squares)))
    while kept and statistics.fmean(squares[i] for i in kept) > threshold:
        kept.remove(max(kept, key=lambda i: squares[i]))
    return [i in kept for i in range(len(squares))]


@pytest.mark.parametrize(
    "gaps", [[0.1, -0.2, 0.9, 0.05], [0.01, 0.02, 0.0, 0.1], [0.5, 0.6, 0.7, 0.8], [0.1, -0.5, 0.3, 0.0]]
)
def test_m2po_drops_the_largest_squares_until_their_mean_is_small(gaps: list[float]) -> None:
    """M·ρ·A with ρ = π/π_b; mean of (log π_old/π_b)² over what is left ≤ 0.04; dropped tokens still divide."""
    batch = small([1, 0], [2, 2])
    batch = batch.replace(behavior_bt=batch.old_bt - torch.tensor(gaps, dtype=torch.float64).view(2, 2))
    _, grad_bt, _ = slope(grouprl.method("m2po"), batch, still(batch))
    kept = m2_kept([g * g for g in gaps], 0.04)
    adv = [a for a in standardised([1, 0]) for _ in range(2)]
    flat = [-k * math.exp(g) * a / 4 for k, g, a in zip(kept, gaps, adv, strict=True)]
    near(grad_bt, [flat[:2], flat[2:]])


# --- 333 ReMix --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("center", [0.0, 0.6, -0.7])
@pytest.mark.parametrize("move", [0.0, 0.05, 0.3, -0.3])
def test_remix_clips_around_where_the_update_began(center: float, move: float) -> None:
    """min(rA, clip(r, c ± 0.2)A), r = π/π_b, c = π_old/π_b: at the first step every old sample lies inside."""
    batch = small([1, 0], ref_bt=[[-1.0]] * 2, step=0)
    batch = batch.replace(behavior_bt=batch.old_bt - center)
    method = grouprl.method("remix", kl_coef=0.0, entropy_coef=0.0)
    _, grad_bt, _ = slope(method, batch, [[move]] * 2)
    r, c = math.exp(center + move), math.exp(center)
    near(grad_bt, [[ppo(a, r, c - 0.2, c + 0.2) / 2] for a in standardised([1, 0])])


@pytest.mark.parametrize(
    ("step", "lam"), [(0, 1), (50, 1), (55, 0.9), (60, 0.9), (61, 0.8), (100, 0.5), (110, 0.5), (900, 0.5)]
)
def test_remix_mixes_two_kls_by_the_step(step: int, lam: float) -> None:
    """β[λ KL(π||π_ref) + (1-λ) KL(π||π_old)], λ = max(1 - 0.1·ceil(max(t - 50, 0)/10), 0.5)."""
    batch = small([1, 1], ref_bt=[[-1.4]] * 2, step=step)
    batch = batch.replace(behavior_bt=batch.old_bt)
    method = grouprl.method("remix", kl_coef=0.01, entropy_coef=0.0)
    _, grad_bt, _ = slope(method, batch, [[0.2]] * 2)
    to_ref, to_old = (1 - math.exp(-d) for d in (0.6, 0.2))  # slope of k3 at log-distance d
    near(grad_bt, [[0.01 * (lam * to_ref + (1 - lam) * to_old) / 2]] * 2)


# --- 335 BAPO ---------------------------------------------------------------------------------------------------------


def bapo_bounds(adv: Sequence[float], ratio: Sequence[float], prob: Sequence[float]) -> tuple[float, float]:
    """The search as the facts write it: c_high first, in steps of 0.05 to 3, then c_low in steps of 0.02 to 0.9."""
    low, high = 0.6, 1.2
    while True:
        good = sum(p * a * min(r, high) for a, r, p in zip(adv, ratio, prob, strict=True) if a > 0)
        bad = sum(p * -a * max(r, low) for a, r, p in zip(adv, ratio, prob, strict=True) if a < 0)
        if good >= 0.4 * (good + bad):
            return low, high
        if high + 0.05 <= 3.0 + 1e-9:
            high += 0.05
        elif low + 0.02 <= 0.9 + 1e-9:
            low += 0.02
        else:
            return low, high


@pytest.mark.parametrize("good", [1, 2, 3])
@pytest.mark.parametrize("ratios", [[2.5, 0.5, 1.0, 0.7], [1.0, 1.0, 1.0, 1.0], [2.9, 2.9, 0.3, 5.0]])
def test_bapo_widens_the_clip_until_good_tokens_carry_their_share(good: int, ratios: list[float]) -> None:
    rewards = [1.0] * good + [0.0] * (4 - good)
    probs = [0.3, 0.5, 0.1, 0.9]
    batch = small(rewards, old_bt=[[math.log(p)] for p in probs])
    batch = batch.replace(behavior_bt=batch.old_bt)
    _, grad_bt, _ = slope(grouprl.method("bapo"), batch, [[math.log(r)] for r in ratios])
    adv = standardised(rewards)
    low, high = bapo_bounds(adv, ratios, probs)
    near(grad_bt, [[0.0 if a < 0 and r > 3 else ppo(a, r, low, high) / 4] for a, r in zip(adv, ratios, strict=True)])


# --- 350 Turn-PPO, ST-PPO ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moved", [[0.0] * 3, [0.3, 0.1, 0.0], [0.3, -0.3, 0.5], [0.1, 0.25, -0.5]])
def test_turn_ppo_has_one_ratio_per_turn(moved: list[float]) -> None:
    """w_k = exp(mean over the turn of log ρ); -min(w_k A_t, clip(w_k)A_t); gradients use the turn's mean advantage."""
    batch = small([1.0], [3], turn_bt=[[0.0, 0.0, 1.0]], value_bt=[[0.2, -0.4, 0.1]], ref_bt=[[-1.0] * 3])
    batch = batch.replace(turn_bt=batch.turn_bt.long())
    method = grouprl.method("turn_ppo", whiten=False, kl_coef=0.0)
    _, grad_bt, ready = slope(method, batch, [moved])
    adv = ready.advantage_bt[0].tolist()
    turns, expected = [(0, 1), (2,)], []
    for turn in turns:
        w = math.exp(statistics.fmean(moved[t] for t in turn))
        expected += [sum(ppo(adv[t], w, 0.8, 1.2) for t in turn) / len(turn) / 3] * len(turn)
    near(grad_bt, [expected])


def test_st_ppo_measures_what_the_clip_leaves_out() -> None:
    """C = E[1/|y| Σ_{t clipped} w_t A_t ∇log π]: here its cotangent by log-probs, one turn a token."""
    from grouprl.algorithms.update.papers.clip_bias import clipped_terms

    adv = [[0.5, -1.0, 2.0], [1.0, 0.0, 0.0]]
    batch = small([0.0, 0.0], [3, 1], turn_bt=[[0.0, 1.0, 2.0], [0.0, -1.0, -1.0]])
    batch = batch.replace(turn_bt=batch.turn_bt.long(), advantage_bt=torch.tensor(adv, dtype=torch.float64))
    ratio = [[1.5, 0.5, 1.1], [1.3]]
    logp_bt = batch.old_bt.clone()
    for i, row in enumerate(ratio):
        for t, r in enumerate(row):
            logp_bt[i, t] += math.log(r)
    leaf_bt = logp_bt.requires_grad_()
    left = clipped_terms(grouprl.method("st_ppo").objective, leaf_bt, batch)
    assert left is not None
    (grad_bt,) = torch.autograd.grad(left, leaf_bt)
    near(grad_bt, [[1.5 * 0.5 / 3 / 2, 0.5 * -1.0 / 3 / 2, 0.0], [1.3 / 2, 0.0, 0.0]])


# --- 85 TA-LPO --------------------------------------------------------------------------------------------------------


@every_ratio
def test_horizon_drift_holds_the_ratio_earlier_at_the_end(ratio: float) -> None:
    """-(ρA - max(0, x - c·tanh(x/c))): scales 2 and 0.6 at first, a quarter of them in the last step."""
    method, log = grouprl.method("horizon_drift"), math.log(ratio)
    for step, share in ((0, 1.0), (9, 0.25)):
        loss, _, _ = slope(method, small([1, 0]).replace(step=step, steps=10), [[log], [log]])
        a, b = standardised([1, 0])
        gains = [((ratio - 1) * a, 2.0 * share), (log * b, 0.6 * share)]
        drifts = [max(0.0, x - c * math.tanh(x / c)) for x, c in gains]
        assert loss == pytest.approx((sum(drifts) - ratio * (a + b)) / 2, abs=1e-6)
