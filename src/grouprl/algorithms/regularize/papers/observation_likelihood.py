"""Likelihood of the text that comes from the environment."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import part
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


@part("regularize")
class ObservationLikelihood(Regularizer):
    """λ times the mean negative log-likelihood of the environment's tokens (`marks.said`), averaged over those tokens
    alone (ECHO).

    The mean is over all such tokens in the optimiser step's rows that are in the loss, and does not depend on how many
    tokens the policy wrote; rows without advantage count too.
    """

    beyond: ClassVar[bool] = True
    coef: NonNegative = 0.1
    says = "{coef:g} times the negative log-likelihood of the environment's tokens, a mean of their own"
    equation = "- {coef:g}·1/N Σ_o log π(o_t) over the environment's N tokens"
    reads = ("marks.said",)
    plain = (
        'said_bt = marks["said"] & (weight_bt != 0).any(1)[:, None]\n'
        "loss = loss - {coef!r} * torch.where(said_bt, logp_bt, 0).sum() / said_bt.sum().clamp(min=1)"
    )
    idle_at = ("coef", 0, "observation_likelihood has no effect: its coefficient is 0")

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return -λ·log π(o_t) on the environment's tokens."""
        said_bt = batch.need("marks.said", self.name)
        return TokenLoss(torch.where(said_bt, -self.coef * logp_bt, 0), {})

    def compute_loss_weights(self, batch: Batch) -> Batch:
        """Set `stats.said`: 1/N on each of the N environment tokens of a step."""
        trained_b = (batch.need("weight_bt", self.name) != 0).any(1)
        said_bt = batch.need("marks.said", self.name) & trained_b[:, None]
        weight_bt = said_bt.to(batch.dtype) / said_bt.sum().clamp(min=1)
        return batch.replace(stats={**batch.stats, "said": weight_bt})

    def weights(self, batch: Batch) -> Tensor:
        """Return [B,T] weights of the environment's tokens."""
        weight_bt: Tensor = batch.need("stats.said", self.name)
        return weight_bt

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows without text of the environment."""
        return super().zero_rows(batch) | ~(self.weights(batch) != 0).any(1)
