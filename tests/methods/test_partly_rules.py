"""Methods whose papers could be checked in part: each rule computed anew, in plain Python, from its written facts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest
import torch

import grouprl
from facts import slope, standardised
from small import f64, near, small

RIGHT = torch.tensor


# --- 43 DisCO: invalid groups contribute 0 and count in the denominator -----------------------------------------------


def test_disco_counts_prompts_without_both_kinds_in_its_mean() -> None:
    """obj_q = mean_pos s - mean_neg s; J = sum over valid prompts / number of all prompts."""
    method, moved = grouprl.method("disco", tau=None, kl_coef=0.0), [[0.2], [0.0], [0.0], [0.0]]
    alone, both = small([1, 0], [1, 1], [0, 0]), small([1, 0, 1, 1], [1] * 4, [0, 0, 1, 1])
    alone = alone.replace(correct_b=RIGHT([True, False]))
    both = both.replace(correct_b=RIGHT([True, False, True, True]))
    loss_1, grad_1, _ = slope(method, alone, moved[:2])
    loss_2, grad_2, _ = slope(method, both, moved)
    assert loss_1 == pytest.approx(-0.2)  # s = mean log π: -0.8 and -1
    assert loss_2 == pytest.approx(loss_1 / 2)
    near(grad_1, [[-1.0], [1.0]])
    near(grad_2, [[-0.5], [0.5], [0.0], [0.0]])


# --- 53 DISPO ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9, 1.0, 1.2, 1.5, 7.0])
def test_dispo_has_four_limits_and_no_dead_token(ratio: float) -> None:
    """J = 1/Σ|y| Σ sg[w] A lp with w = clip(ρ, by the sign of A)."""
    method = grouprl.method("dispo", positive_low=0.8, positive_high=1.28, negative_low=0.05, negative_high=5.0)
    batch = small([1, 0], [2, 1])
    log = math.log(ratio)
    _, grad_bt, _ = slope(method, batch, [[log, 0.0], [log]])
    a, b = standardised([1, 0])
    plus, minus = min(max(ratio, 0.8), 1.28), min(max(ratio, 0.05), 5.0)
    near(grad_bt, [[-plus * a / 3, -a / 3], [-minus * b / 3, 0.0]])
    assert bool((grad_bt[batch.mask_bt] != 0).all())


# --- 97 SEED-GRPO -----------------------------------------------------------------------------------------------------


def semantic_factor(mass: Sequence[float], size: int, alpha: float = 0.0417) -> float:
    entropy = -sum(p * math.log(p) for p in mass if p > 0)
    return 1 / (1 + alpha / math.log(size) * entropy)


def test_seed_grpo_scales_by_the_entropy_of_the_completions() -> None:
    """Clusters {0, 1} and {2}: masses from exp(mean log π) of -1, -2 (two tokens -1.5, -2.5) and -0.5."""
    old_bt = [[-1.0, -1.0], [-1.5, -2.5], [-0.5, -0.5]]
    batch = small([1, 0, 0], [2, 2, 2], old_bt=old_bt).replace(keys={"answer": torch.tensor([4, 4, 7])}, max_length=2)
    batch = batch.replace(behavior_bt=batch.old_bt)
    ready = grouprl.method("seed_grpo").prepare(batch)
    weights = [math.exp(-1), math.exp(-2), math.exp(-0.5)]
    factor = semantic_factor([(weights[0] + weights[1]) / sum(weights), weights[2] / sum(weights)], 3)
    near(ready.advantage_bt[:, 0], [2 / 3 * factor, -factor / 3, -factor / 3])


def test_seed_grpo_limits() -> None:
    def first(clusters: list[int]) -> float:
        batch = small([1, 0], old_bt=[[-1.0], [-1.0]]).replace(keys={"answer": torch.tensor(clusters)}, max_length=1)
        batch = batch.replace(behavior_bt=batch.old_bt)
        return float(grouprl.method("seed_grpo").prepare(batch).advantage_bt[0, 0])

    assert first([3, 3]) == pytest.approx(0.5), "unanimous: unchanged"
    assert first([3, 5]) == pytest.approx(0.5 / 1.0417), "all different and equally likely: 1/(1 + α)"


# --- 7 P3O ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log_1", "log_2", "kept_1", "kept_2"),
    [(0.0, 0.0, 1, 1), (0.1, -0.1, 1, 1), (0.3, 0.0, 0, 1), (0.0, -0.3, 1, 0), (-0.3, 0.3, 1, 1), (0.3, -0.3, 0, 0)],
)
def test_p3o_separate(log_1: float, log_2: float, kept_1: int, kept_2: int) -> None:
    """Ascent: w1·w2·(r1 - r2)/2·(∇log π(y1) - ∇log π(y2)), a term dropped once its own w has moved far enough."""
    batch = small([1.0, 0.25], [2, 1])
    _, grad_bt, _ = slope(grouprl.method("p3o"), batch, [[log_1 / 2, log_1 / 2], [log_2]])
    size = math.exp(log_1 + log_2) * 0.75 / 2
    near(grad_bt, [[-kept_1 * size] * 2, [kept_2 * size, 0.0]])


def test_p3o_does_not_see_a_shift_of_the_rewards() -> None:
    batch = small([1.0, 0.25], [2, 1])
    shifted = batch.replace(reward_b=batch.reward_b + 4)
    assert torch.equal(*(slope(grouprl.method("p3o"), b, [[0.1, 0.0], [0.05]])[1] for b in (batch, shifted)))


# --- 16 Reg-GRPO ------------------------------------------------------------------------------------------------------


def test_reg_grpo_regresses_the_standardised_log_ratio_on_the_advantage() -> None:
    """mean_i (A_i - (q_i - mean q)/sqrt(var q + 0.1²))²; the smoothed spread is declared on the card."""
    rewards, moved = [1.0, 0.0, 0.5], [[0.2, 0.1], [-0.1], [0.05]]
    loss, _, _ = slope(grouprl.method("reg_grpo"), small(rewards, [2, 1, 1]), moved)
    q, target = [0.3, -0.1, 0.05], standardised(rewards)
    candidates = []
    for variance in (statistics.pvariance(q), statistics.variance(q)):
        spread = math.sqrt(variance + 0.01)
        guess = [(x - statistics.fmean(q)) / spread for x in q]
        candidates.append(statistics.fmean((a - p) ** 2 for a, p in zip(target, guess, strict=True)))
    assert loss == pytest.approx(candidates[1], rel=1e-6)


# --- 256 CPGD ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.0, 1.15, 1.5, 100.0])
def test_cpgd_clips_the_log_ratio_and_pulls_back(ratio: float) -> None:
    """Inside: -A without ρ; outside in the pessimistic direction exactly 0; drift α·min(ρ - 1, 2)."""
    log = math.log(ratio)
    _, grad_bt, _ = slope(grouprl.method("cpgd"), small([1, 0]), [[log], [log]])
    a, b = standardised([1, 0])
    drift = 1e-3 * min(ratio - 1, 2.0)
    good = -a if ratio <= 1.2 else 0.0
    bad = -b if ratio >= 0.8 else 0.0
    near(grad_bt, [[(good + drift) / 2], [(bad + drift) / 2]])


# --- 103 GRPO-LEAD ----------------------------------------------------------------------------------------------------


def logistic(x: float) -> float:
    return 0.4 + 1.1 / (1 + math.exp(10 * (x - 0.75)))


@pytest.mark.parametrize(
    ("share", "right", "wrong"),
    [(0.125, 1.498, 0.645), (0.25, 1.493, 0.950), (0.5, 1.417, 1.417), (0.75, 0.950, 1.493)],
)
def test_grpo_lead_weighs_by_difficulty(share: float, right: float, wrong: float) -> None:
    assert (logistic(share), logistic(1 - share)) == pytest.approx((right, wrong), abs=5e-4)
    good = round(8 * share)
    rewards = [1.0] * good + [0.0] * (8 - good)
    batch = small(rewards).replace(correct_b=f64(rewards) > 0)
    ready = grouprl.method("grpo_lead").prepare(batch)
    plain = standardised([1.0] * good + [-1.0] * (8 - good))
    near(ready.advantage_bt[:, 0], [a * (logistic(share) if a > 0 else logistic(1 - share)) for a in plain])


def test_grpo_lead_pays_short_right_completions() -> None:
    """Lengths 1, 2, 3 of the right ones: z = -1, 0, 1, so exp(-0.05 z) = 1.0513, 1, 0.9512; wrong ones get -1."""
    batch = small([1, 1, 1, 0], [1, 2, 3, 2]).replace(correct_b=RIGHT([True, True, True, False]))
    ready = grouprl.method("grpo_lead").prepare(batch)
    near(ready.reward_b, [math.exp(0.05 / (1 + 1e-6)), 1.0, math.exp(-0.05 / (1 + 1e-6)), -1.0])
    alone = small([1, 0], [3, 1]).replace(correct_b=RIGHT([True, False]))
    near(grouprl.method("grpo_lead").prepare(alone).reward_b, [1.0, -1.0])


# --- 44 IWOCS, 196 DRPG, 258 COUNTERPOL -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["iwocs", "drpg"])
def test_training_on_the_worst_case_has_reinforces_loss(name: str) -> None:
    entry = grouprl.method("iwocs", every=3) if name == "iwocs" else grouprl.method("drpg", tolerance=0.5)
    ready = entry.prepare(small([1.0, 0.0, 2.0]))
    near(ready.advantage_bt, [[1.0], [0.0], [2.0]])
    assert entry.curriculum is not None
    assert grouprl.method(name, baseline="group").advantage == grouprl.method("reinforce", baseline="group").advantage


def test_counterpol_multiplies_by_twice_the_distance_of_the_others_from_the_target() -> None:
    """A = ±½ around the group's mean; the others' means are 0 and 1, the target ¼: ½·½ and -½·(-1½)."""
    ready = grouprl.method("counterpol", baseline="group", target=0.25).prepare(small([1.0, 0.0]))
    near(ready.advantage_bt, [[0.25], [0.75]])
