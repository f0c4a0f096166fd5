"""Preference methods whose papers could be checked in part: each against its rule in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

import grouprl
from grouprl import Batch
from grouprl.algorithms.update.papers.outer_loops import RoundMomentum
from small import f64, near

REFERENCE = -1.0


def tokens(rewards: list[float], **fields: object) -> Batch:
    """One group of one-token completions."""
    size = len(rewards)
    mask_bt, group_b = torch.ones(size, 1, dtype=torch.bool), torch.zeros(size, dtype=torch.int64)
    return Batch(mask_bt=mask_bt, group_b=group_b, reward_b=f64(rewards), **fields)  # type: ignore[arg-type]


def value(method: grouprl.Method, ratios: list[float], batch: Batch) -> torch.Tensor:
    """The loss where each completion is `ratios` more likely than the reference, every iterate and the sampler."""
    ref_bt = torch.full((len(ratios), 1), REFERENCE, dtype=torch.float64)
    names = [each.removeprefix("refs.") for each in method.needs() if each.startswith("refs.")]
    batch = batch.replace(ref_bt=ref_bt, refs=dict.fromkeys(names, ref_bt), old_bt=ref_bt)
    return method.loss(f64(ratios)[:, None] + REFERENCE, method.prepare(batch)).value


def logistic(z: float) -> float:
    return math.log1p(math.exp(-z))


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def test_dpa_imitates_the_best_of_the_group_alone() -> None:
    near(value(grouprl.method("dpa"), [0.3, 0.2, -0.4], tokens([1.0, 5.0, 2.0])), -(0.2 + REFERENCE))


@pytest.mark.filterwarnings("ignore:the method 'accelerated_dpo'")
def test_accelerated_dpo_is_dpo_within_a_round_and_extrapolates_after_it() -> None:
    method = grouprl.method("accelerated_dpo", every=7, momentum=0.4)
    assert method.update == RoundMomentum(every=7, momentum=0.4)
    near(value(method, [0.5, -0.3], tokens([1.0, 0.0])), logistic(method.objective.link.beta * 0.8))


def test_vpo_moves_away_from_known_answers_online_and_to_those_of_the_data_offline() -> None:
    opponents = tokens([1.0, 0.0, 0.5], keys={"opponent": torch.tensor([0, 0, 1])})
    near(
        value(grouprl.method("vpo", beta=0.2, alpha=0.5), [0.5, -0.3, 0.7], opponents),
        logistic(0.2 * 0.8) + 0.2 * 0.5 * (0.7 + REFERENCE),
    )
    near(
        value(grouprl.method("vpo", beta=0.2, alpha=0.5, stance="pessimism"), [0.5, -0.3], tokens([1.0, 0.0])),
        logistic(0.2 * 0.8) - 0.2 * 0.5 * (0.5 + REFERENCE),
    )


def test_hypo_adds_the_kl_of_what_the_policy_samples_to_dpo() -> None:
    batch = tokens([1.0, 0.0, 0.0, 0.0], keys={"opponent": torch.tensor([0, 0, 1, 1])})
    found = value(grouprl.method("hypo", beta=0.2, coef=0.3), [0.5, -0.3, 0.7, 0.1], batch)
    near(found, logistic(0.2 * 0.8) + 0.3 * (0.7 + 0.1) / 2)


def test_nash_mp_stays_near_the_reference_and_its_target() -> None:
    """A = half of what σ(1) is above ½, as a comparison with itself counts; (β + β/η)·d²/2 of each."""
    won = (sigmoid(1.0) - 0.5) / 2
    rule = [-a * (d + REFERENCE) + (0.2 + 0.2 / 0.5) * d**2 / 2 for a, d in ((won, 0.5), (-won, -0.3))]
    near(value(grouprl.method("nash_mp", beta=0.2, step=0.5), [0.5, -0.3], tokens([1.0, 0.0])), sum(rule) / 2)


def test_rspo_adds_a_mixture_of_divergences_to_sppo() -> None:
    """On samples of π, d²/2 has the slope of KL(π || π_ref), e^-d - 1 + d that of KL(π_ref || π)."""
    batch, ratios = tokens([1.0, 0.0]), [0.5, -0.3]
    won = (sigmoid(1.0) - 0.5) / 2
    sppo = sum((d - a / 0.1) ** 2 for a, d in ((won, 0.5), (-won, -0.3))) / 2
    reverse, forward = sum(d**2 / 2 for d in ratios) / 2, sum(math.exp(-d) - 1 + d for d in ratios) / 2
    for r, f in ((0.4, 0.0), (0.0, 0.3), (0.4, 0.3), (0.0, 0.0)):
        method = grouprl.method("rspo", beta=0.1, coef=2.0, reverse=r, forward=f)
        near(value(method, ratios, batch), sppo + 2 * (r * reverse + f * forward))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [1.0, 40.0, 500.0])
def test_gpo_reads_differences_of_rewards_however_large(gap: float, dtype: torch.dtype) -> None:
    """Three rewards 0, g, g/2: the mean over all three of R_i - R_j is -g/2, g/2, 0."""
    batch = grouprl.Batch(
        mask_bt=torch.ones(3, 1, dtype=torch.bool),
        group_b=torch.zeros(3, dtype=torch.int64),
        reward_b=torch.tensor([0.0, gap, gap / 2], dtype=dtype),
    )
    found_b = grouprl.method("gpo").advantage(batch)[:, 0]
    assert found_b.tolist() == pytest.approx([-gap / 2, gap / 2, 0.0], rel=1e-6)


def test_gpo_fits_log_odds_of_the_preference() -> None:
    """log P/(1 - P) is the difference of rewards 1.5; with itself among the two, A = ±0.75."""
    rule = [(d - a / 0.5) ** 2 for a, d in ((0.75, 0.5), (-0.75, -0.3))]
    near(value(grouprl.method("gpo", beta=0.5), [0.5, -0.3], tokens([1.5, 0.0])), sum(rule) / 2)


def test_writing_zero_is_plus_or_minus_one_against_the_measure_and_clipped() -> None:
    batch = tokens([2.0, 1.0, 0.0], keys={"measure": torch.tensor([0, 1, 0])})
    found = value(grouprl.method("writing_zero", clip=0.2, most=1.0), [0.5, 0.4, 0.1], batch)
    near(found, (-1.2 + 0.0 + math.exp(0.1)) / 3)


def test_tpo_imitates_the_best_and_compares_the_others_without_reference() -> None:
    found = value(grouprl.method("tpo", beta=0.2, alpha=0.5), [0.5, -0.3, 0.7], tokens([1.0, 0.0, 2.0]))
    near(found, logistic(0.2 * 0.8) - 0.5 * (0.7 + REFERENCE))


def test_rs_dpo_trains_on_pairs_whose_scaled_gap_is_clear() -> None:
    """σ((R_w - R_l)/τ) > η: gaps 2, 1.5 and 0.5 over τ = 2 have 0.73, 0.68 and 0.56."""
    rewards, ratios = [2.0, 1.5, 0.0], [0.5, -0.3, 0.7]
    for eta in (0.55, 0.6, 0.7):
        pairs = [(i, j) for i in range(3) for j in range(i + 1, 3) if sigmoid((rewards[i] - rewards[j]) / 2) > eta]
        rule = sum(logistic(0.2 * (ratios[i] - ratios[j])) for i, j in pairs) / len(pairs)
        near(value(grouprl.method("rs_dpo", beta=0.2, tau=2.0, eta=eta), ratios, tokens(rewards)), rule)


def test_f_dpg_judges_by_the_slope_of_the_divergence() -> None:
    """Reverse KL, f'(t) = 1 + log t, t = π/p: log t = d - R/β + log Z, so A = R/β - d, less the group's mean."""
    method = grouprl.method("f_dpg", beta=0.5, divergence="reverse_kl")
    old_bt = f64([[-0.5], [-1.3]])
    batch = tokens([1.0, 0.0], ref_bt=torch.full((2, 1), REFERENCE, dtype=torch.float64), old_bt=old_bt)
    a, b = 1.0 / 0.5 - 0.5, 0.0 - (-0.3)
    near(method.prepare(batch).advantage_bt[:, 0], [(a - b) / 2, (b - a) / 2])


@pytest.mark.parametrize("tied", [False, True])
def test_dpo_ties_is_the_likelihood_of_a_win_or_a_tie(tied: bool) -> None:
    z, batch = 0.2 * 0.8, tokens([1.0, 1.0 if tied else 0.0])
    total = math.log(math.exp(z / 2) + math.exp(-z / 2) + 2 * 0.7)
    davidson = total - (math.log(2 * 0.7) if tied else z / 2)
    near(value(grouprl.method("dpo_ties", beta=0.2, margin=0.7), [0.5, -0.3], batch), davidson)
    tie = -math.log((math.exp(2 * 0.7) - 1) * sigmoid(z - 0.7) * sigmoid(-z - 0.7))
    rao = tie if tied else logistic(z - 0.7)
    near(value(grouprl.method("dpo_ties", beta=0.2, margin=0.7, model="rao_kupper"), [0.5, -0.3], batch), rao)


@pytest.mark.parametrize("tied", [False, True])
def test_dpo_ties_logs_trls_metrics_in_which_a_tie_has_no_better_side(tied: bool) -> None:
    """Scores 0.5 and -0.3 at β = 0.2; of a tie both sides have the mean, 0.1."""
    ref_bt = torch.full((2, 1), REFERENCE, dtype=torch.float64)
    method, batch = grouprl.method("dpo_ties", beta=0.2), tokens([1.0, 1.0 if tied else 0.0], ref_bt=ref_bt)
    found = method.loss(f64([[0.5], [-0.3]]) + REFERENCE, method.prepare(batch)).metrics
    better, worse = (0.1, 0.1) if tied else (0.5, -0.3)
    near(found["rewards/chosen"], 0.2 * better)
    near(found["rewards/rejected"], 0.2 * worse)
    near(found["rewards/margins"], 0.2 * (better - worse))
    near(found["rewards/accuracies"], 0.5 if tied else 1.0)
    near(found["logps/chosen"], REFERENCE + better)
    near(found["chosen_drift"], better)
