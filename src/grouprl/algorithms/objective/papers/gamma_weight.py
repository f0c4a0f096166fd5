"""VESPO: the ratio of whole completions, softened by a gamma-shaped weight (arXiv:2602.10693)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Objective, idle_ratio
from grouprl.algorithms.objective.ratio import LOG_LIMIT, Against, log_ratio
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch

Power = Annotated[float, Field(ge=0)]
LEAST = math.log(1e-8)
"""Smallest logarithm of a completion's ratio, as in TRL."""


@part("objective")
class GammaWeight(Objective):
    """-φ(w)·A·log π with φ(w) = w^k·e^{λ(1-w)}, w = π(y)/π_old(y) of the whole completion, not differentiated (VESPO).

    φ is 1 at w = 1, largest at w = k/λ, and fades on both sides; (k, λ) have a pair for A ≥ 0 and one for A < 0.
    """

    k_positive: Power = 2.0
    lambda_positive: Power = 3.0
    k_negative: Power = 3.0
    lambda_negative: Power = 2.0
    against: Against = "old"
    says = (
        "push each token's log-prob by its advantage times a weight of its whole completion's ratio w, "
        "w^k·e^(λ(1-w)): k {k_positive:g}, λ {lambda_positive:g} where A ≥ 0, k {k_negative:g}, λ "
        "{lambda_negative:g} where A < 0"
    )
    equation = "-sg[w^k·e^(λ(1-w))]·A·log π(y_t),  w = π(y)/π_old(y)"
    reads = ("{against}_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -φ(w)·A_t·log π(y_t)."""
        adv_bt = batch.need("advantage_bt", self.name)
        token_bt = log_ratio(logp_bt.detach(), batch, "token", self.against)
        log_b = token_bt.sum(1).clamp(LEAST, LOG_LIMIT)
        log_bt = log_b[:, None].expand_as(adv_bt)
        k_bt = torch.where(adv_bt >= 0, self.k_positive, self.k_negative).to(adv_bt.dtype)
        lambda_bt = torch.where(adv_bt >= 0, self.lambda_positive, self.lambda_negative).to(adv_bt.dtype)
        weight_bt = (k_bt * log_bt + lambda_bt.clamp(min=1e-4) * (1 - log_bt.exp())).exp()
        return TokenLoss(-weight_bt * adv_bt * logp_bt, {"gate_mean": weight_bt})

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the weight has no effect if the ratio is always 1."""
        return idle_ratio(run, self.against, "the gamma weight")
