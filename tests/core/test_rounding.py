"""A difference that rounding explains is a tie: it counts half, whichever way its last bits point."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from grouprl import method
from grouprl.algorithms.critic.critic import ValueLoss
from grouprl.algorithms.objective.papers.kl_cov import KLCov
from grouprl.algorithms.regularize.kl import estimate
from grouprl.algorithms.regularize.papers.likelihood import LikelihoodGuard
from grouprl.core.edges import share_right, without_rounding
from grouprl.records.tokens import Tokens
from grouprl.rollout.ranked_rows import gaps_of
from small import f64, near, small


def test_a_gap_counts_by_its_sign_and_half_where_it_is_as_small_as_rounding() -> None:
    gap = f64([1e-9, -1e-9, 2e-14, -2e-14, 0.0])
    assert share_right(gap, f64([10.0] * 5)).tolist() == [1.0, 0.0, 0.5, 0.5, 0.5]
    assert share_right(gap, f64([0.0] * 5)).tolist() == [1.0, 0.0, 1.0, 0.0, 0.5], "of numbers near 0 it is large"
    assert without_rounding(gap, f64([10.0] * 5)).tolist() == [1e-9, -1e-9, 0.0, 0.0, 0.0]
    assert share_right(torch.tensor([1e-4]), torch.tensor([100.0])).tolist() == [0.5], "float32 is rounded sooner"


@pytest.mark.parametrize("name", ["dpo", "online_dpo", "simpo", "orpo"])
@pytest.mark.parametrize("noise", [2e-15, -2e-15])
def test_pairs_at_the_reference_count_half_for_any_last_bits(name: str, noise: float) -> None:
    chosen = method(name)
    logp_bt = f64([[-3.0, -2.0], [-3.0, -2.0]])
    batch = small([1, 0], [2, 2], old_bt=None, ref_bt=logp_bt.clone())
    noisy_bt = logp_bt + f64([[noise, 0.0], [0.0, 0.0]])
    found = chosen.loss(noisy_bt, chosen.compute_loss_weights(chosen.prepare(batch))).metrics
    for metric in ("pair_accuracy", "rewards/accuracies"):
        near(found[metric], 0.5)


@pytest.mark.parametrize("noise", [2e-15, -2e-15])
def test_labels_at_the_reference_count_half(noise: float) -> None:
    chosen = method("bco")
    logp_bt = f64([[-3.0], [-2.0]])
    batch = small(
        [1, 0], groups=[0, 1], mask_bt=torch.ones(2, 1, dtype=torch.bool), old_bt=None, ref_bt=logp_bt.clone()
    )
    near(
        chosen.loss(logp_bt + noise, chosen.compute_loss_weights(chosen.prepare(batch))).metrics["label_accuracy"], 0.5
    )


class Scored:
    """A reward model with these scores."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = f64(scores)

    def evaluate(self, tokens: Tokens, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        return dict.fromkeys(names, self.scores)


def test_scores_that_differ_by_rounding_are_tied_in_evaluations() -> None:
    tokens = Tokens(((3,), (3,), (3,)), ((4,), (5,), (6,)))
    (gap_nn,) = gaps_of(Scored([0.3, 0.3 + 1e-16, 0.4]), tokens, [np.arange(3)])  # type: ignore[arg-type]
    assert gap_nn[0, 1] == gap_nn[1, 0] == 0
    assert gap_nn[2, 0] == pytest.approx(0.1)


@pytest.mark.parametrize("gate", ["none", "run", "response"])
@pytest.mark.parametrize("noise", [1e-15, -1e-15])
def test_a_guard_of_likelihood_pulls_at_no_token_that_only_rounding_moved(gate: str, noise: float) -> None:
    """Before the first step of an update all log-probs are the old ones; a slope of λ must not hang on the last bit."""
    guard = LikelihoodGuard(gate=gate)  # type: ignore[arg-type]
    old_bt = f64([[-3.0, -2.0], [-1.0, -4.0]])
    batch = small([1, 0], [2, 2], old_bt=old_bt).replace(advantage_bt=torch.ones(2, 2, dtype=torch.float64))
    logp_bt = (old_bt - noise).requires_grad_()
    out = guard(logp_bt, batch)
    out.loss_bt.sum().backward()
    assert logp_bt.grad is not None
    assert logp_bt.grad.abs().max() == 0
    assert out.metrics["guarded_fraction"].sum() == 0
    fallen_bt = (old_bt - 0.5).requires_grad_()
    guard(fallen_bt, batch).loss_bt.sum().backward()
    assert fallen_bt.grad is not None
    assert fallen_bt.grad.tolist() == [[-0.2, -0.2], [-0.2, -0.2]]


@pytest.mark.parametrize("noise", [1e-15, -1e-15])
def test_the_odds_of_nft_are_at_no_floor_where_only_rounding_moved_the_policy(noise: float) -> None:
    chosen = method("nft")
    old_bt = f64([[-3.0, -2.0], [-1.0, -4.0]])
    batch = small([1, 0], [2, 2], old_bt=old_bt, correct_b=torch.tensor([True, False]))
    prepared = chosen.compute_loss_weights(chosen.prepare(batch))
    assert float(chosen.loss(old_bt + noise, prepared).metrics["capped_fraction"]) == 0
    assert float(chosen.loss(old_bt + 0.5, prepared).metrics["capped_fraction"]) > 0


def test_a_value_that_moved_less_than_the_clip_is_not_clipped() -> None:
    """Both errors are one number then, but for the order of its sums."""
    rng = torch.Generator().manual_seed(0)
    old_bt, step_bt, return_bt = (torch.randn(64, 8, generator=rng, dtype=torch.float64) for _ in range(3))
    batch = small([1] * 64, [8] * 64).replace(value_bt=old_bt, return_bt=return_bt)
    critic = ValueLoss(clip=0.2)
    assert float(critic(old_bt + 0.19 * step_bt.tanh(), batch).metrics["value_clip_fraction"].sum()) == 0
    assert float(critic(old_bt + 10 * step_bt, batch).metrics["value_clip_fraction"].sum()) > 0


@pytest.mark.parametrize("noise", [1e-15, -1e-15])
def test_distances_are_flat_where_only_rounding_moved_the_policy(noise: float) -> None:
    """KL-Cov's penalty and the estimate |d|: otherwise their slope is λ from the first step on, its sign by chance."""
    old_bt = f64([[-3.0, -2.0], [-1.0, -4.0]])
    batch = small([1, 0], [2, 2], old_bt=old_bt, ref_bt=old_bt.clone())
    for penalty in (KLCov(share=1.0), KLCov(share=1.0, coef=0.0)):
        logp_bt = (old_bt + noise).requires_grad_()
        prepared = batch.replace(advantage_bt=torch.full((2, 2), 0.5, dtype=torch.float64))
        penalty(logp_bt, prepared).loss_bt.sum().backward()
        assert logp_bt.grad is not None
        assert logp_bt.grad.flatten().tolist() == pytest.approx([-0.5] * 4)
    for kind in ("abs", "abs+"):
        far_bt = f64([[noise, 0.0, 0.3, -0.3]]).requires_grad_()
        estimate(far_bt, kind).sum().backward()
        assert far_bt.grad is not None
        expected = [0.0, 0.0, 1.0, -1.0] if kind == "abs" else [0.0, 0.0, 0.3, -0.3]
        assert far_bt.grad[0].tolist() == pytest.approx(expected, abs=1e-18)


@pytest.mark.parametrize("estimator", ["k2", "k3", "abs", "k1+", "k3+", "abs+"])
def test_a_kl_within_rounding_has_no_slope_and_keeps_its_value(estimator: str) -> None:
    log_bt = f64([[1e-14, -1e-14, 1e-3]]).requires_grad_()
    value_bt = estimate(log_bt, estimator)
    (slope_bt,) = torch.autograd.grad(value_bt.sum(), log_bt)
    assert slope_bt[0, :2].tolist() == [0.0, 0.0]
    assert slope_bt[0, 2] > 0
    plain_bt = {"k1": log_bt, "k2": log_bt**2 / 2, "k3": torch.expm1(-log_bt) + log_bt, "abs": log_bt * (log_bt > 1e-9)}
    near(value_bt.detach(), plain_bt[estimator.removesuffix("+")].detach())


def test_the_slope_of_k1_is_the_same_at_any_distance() -> None:
    log_bt = f64([[1e-14, 1e-3]]).requires_grad_()
    (slope_bt,) = torch.autograd.grad(estimate(log_bt, "k1").sum(), log_bt)
    assert slope_bt.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("noise", [2e-15, -2e-15])
def test_equal_rewards_move_nothing_while_policy_and_reference_differ_by_rounding(noise: float) -> None:
    """Adam takes a whole step along any gradient, however small."""
    chosen = method("grpo", kl_coef=0.1)
    ref_bt = f64([[-3.0, -2.0], [-3.0, -2.0]])
    step = chosen.compute_loss_weights(chosen.prepare(small([1, 1], [2, 2], old_bt=ref_bt, ref_bt=ref_bt)))
    logp_bt = (ref_bt + noise).requires_grad_()
    (slope_bt,) = torch.autograd.grad(chosen.loss(logp_bt, step).value, logp_bt)
    assert not slope_bt.any()
