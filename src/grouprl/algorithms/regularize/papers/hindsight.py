"""Errors of actions read from the context of their whole trajectory, and of the context's length (OPPO)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from grouprl.algorithms.losses import RowLoss, TokenLoss
from grouprl.algorithms.part import part
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.batch import Batch
from grouprl.core.metric import Metric
from grouprl.core.numbers import NonNegative
from grouprl.core.outputs import CONTEXT_SIZE_ERROR, HINDSIGHT_ERROR


@part("regularize")
class HindsightError(Regularizer):
    """`coef` times the error of each action that the policy reads from the context of the whole trajectory.

    Hindsight information matching of OPPO (arXiv:2305.16217): the context must tell what was done.
    """

    log_probs: ClassVar[bool] = False
    metrics: ClassVar = {
        HINDSIGHT_ERROR: Metric(
            words="mean error of actions that the policy reads from the context of their whole trajectory",
            good="falling; a mean square for vectors, nats for numbered actions",
        ),
    }
    coef: NonNegative = 1.0
    asks = (HINDSIGHT_ERROR,)
    says = "{coef:g} times the error of the action that the policy reads from the context of the whole trajectory"
    equation = "+ {coef:g}·e(a_t | s_≤t, I(τ))"
    plain = "loss = loss + {coef!r} * (weight_bt * torch.where(active_bt, stats['hindsight_error'], 0)).sum()"
    idle_at = ("coef", 0, "hindsight_error has no effect: its coefficient is 0, and no action is learned")

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return coef·error of each action, with gradient in the output."""
        error_bt = torch.where(batch.active_bt, batch.need(f"stats.{HINDSIGHT_ERROR}", self.name), 0)
        return TokenLoss(self.coef * error_bt, {HINDSIGHT_ERROR: error_bt})


@part("regularize")
class ContextSize(Regularizer):
    """`coef` times (||I(τ)|| - 1)² of each trajectory: contexts stand near the unit sphere (OPPO, arXiv:2305.16217)."""

    log_probs: ClassVar[bool] = False
    metrics: ClassVar = {
        CONTEXT_SIZE_ERROR: Metric(
            level="row",
            words="mean squared difference of the length of a trajectory's context from 1",
            good="small",
        ),
    }
    coef: NonNegative = 0.1
    asks = (CONTEXT_SIZE_ERROR,)
    says = "{coef:g} times the squared difference of the length of a trajectory's context from 1"
    equation = "+ {coef:g}·(||I(τ)|| - 1)²"
    plain = "loss = loss + {coef!r} * (weight_bt * row_outputs['context_size_error'][:, None] * active_bt).sum()"
    idle_at = ("coef", 0, "{name} has no effect: its coefficient is 0")

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> RowLoss:
        """Return coef·(||I(τ)|| - 1)² of each trajectory."""
        error_b = batch.need(f"row_outputs.{CONTEXT_SIZE_ERROR}", self.name)
        return RowLoss(self.coef * error_b, {CONTEXT_SIZE_ERROR: error_b})
