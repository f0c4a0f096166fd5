"""Losses of pairs whose papers could be checked in part: each against its rule in plain Python."""

from __future__ import annotations

import math

import torch

import grouprl
from grouprl import Batch
from small import f64, near, small

BETTER, WORSE = (-1.0, -0.5, -0.25), (-2.0, -0.125)
"""Log-probs of the tokens of a chosen and a rejected completion."""
REFERENCE = ((-1.5, -0.25, -0.5), (-1.0, -0.5))


def one_pair() -> tuple[Batch, torch.Tensor]:
    mask_bt = torch.tensor([[True, True, True], [True, True, False]])
    rows = f64([BETTER, (*WORSE, 0.0)])
    ref_bt = f64([REFERENCE[0], (*REFERENCE[1], 0.0)])
    return small([1, 0], groups=[0, 0], mask_bt=mask_bt, old_bt=None, ref_bt=ref_bt), rows


def logistic(value: float) -> float:
    return math.log1p(math.exp(-value))


def value(method: grouprl.Method) -> torch.Tensor:
    batch, logp_bt = one_pair()
    return method.loss(logp_bt, method.prepare(batch)).value


def ratio(number: int) -> list[float]:
    """Of each token of a completion: log π/π_ref."""
    return [p - r for p, r in zip((BETTER, WORSE)[number], REFERENCE[number], strict=True)]


def test_h_dpo_scales_the_policy_alone() -> None:
    near(
        value(grouprl.method("h_dpo", alpha=0.8)),
        logistic(0.1 * (0.8 * (sum(BETTER) - sum(WORSE)) - (sum(REFERENCE[0]) - sum(REFERENCE[1])))),
    )


def test_ld_dpo_weighs_tokens_beyond_the_shorter_completion() -> None:
    first, second = ratio(0), ratio(1)
    gap = sum(first[:2]) + 0.3 * first[2] - sum(second)
    near(value(grouprl.method("ld_dpo", alpha=0.3)), logistic(0.1 * gap))


def test_alphapo_compares_powers_of_mean_probabilities() -> None:
    def power(tokens: tuple[float, ...]) -> float:
        return (1 - math.exp(sum(tokens) / len(tokens)) ** -0.25) / 0.25

    found = value(grouprl.method("alphapo", alpha=0.25, beta=2.5, gamma=0.4))
    near(found, logistic(2.5 * (power(BETTER) - power(WORSE)) - 0.4))


def test_discopop_mixes_the_logistic_and_the_exponential_loss() -> None:
    z = 0.05 * (sum(ratio(0)) - sum(ratio(1)))
    share = 1 / (1 + math.exp(-z / 0.05))
    near(value(grouprl.method("discopop")), (1 - share) * logistic(z) + share * math.exp(-z))


def test_tr_dpo_is_dpo_against_a_reference_that_follows() -> None:
    method = grouprl.method("tr_dpo", beta=0.1)
    (name,) = [each.removeprefix("refs.") for each in method.needs() if each.startswith("refs.")]
    batch, logp_bt = one_pair()
    batch = batch.replace(refs={name: batch.ref_bt}, ref_bt=None)
    found = method.loss(logp_bt, method.prepare(batch)).value
    near(found, logistic(0.1 * (sum(ratio(0)) - sum(ratio(1)))))


def test_attribute_regression_is_the_mean_squared_error_over_rows_and_ratings() -> None:
    method = grouprl.method("attribute_regression")
    rated = {"helpfulness": f64([0.5, 2.0, -1.0]), "correctness": f64([1.0, 0.0, 3.0])}
    batch = small([0.75, 1.0, 1.0], groups=[0, 0, 1], mask_bt=torch.ones(3, 2, dtype=torch.bool), old_bt=None).replace(
        rewards=rated
    )
    outputs = {"score@1": f64([1.0, 1.0, 1.0]), "score@2": f64([1.0, 2.0, 2.0])}
    found = method.loss(None, method.prepare(batch), outputs=outputs).value
    near(found, (0.25 + 1.0 + 4.0 + 0.0 + 4.0 + 1.0) / 6)


def test_reward_regression_is_the_mean_squared_error_of_scores() -> None:
    method = grouprl.method("reward_regression")
    batch = small([0.5, 2.0, -1.0], groups=[0, 0, 1], mask_bt=torch.ones(3, 2, dtype=torch.bool), old_bt=None)
    score_b = f64([1.0, 1.0, 1.0])
    found = method.loss(None, method.prepare(batch), outputs={"score": score_b}).value
    near(found, (0.25 + 1.0 + 4.0) / 3)
