"""Errors of what a policy foresees besides the action: the next observation and the return to go (MO-DT)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import part
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.batch import Batch
from grouprl.core.metric import Metric
from grouprl.core.numbers import NonNegative
from grouprl.core.outputs import OBSERVATION_ERROR, TO_GO_ERROR


class Foresight(Regularizer):
    """Base: `coef` times an error that the policy computes of its own foresight, an output named in `asks`."""

    log_probs: ClassVar[bool] = False
    idle_at = ("coef", 0, "{name} has no effect: its coefficient is 0")

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return coef·error of each action, with gradient in the output."""
        (output,) = self.asks
        error_bt = torch.where(batch.active_bt, batch.need(f"stats.{output}", self.name), 0)
        return TokenLoss(self.coef * error_bt, {output: error_bt})


@part("regularize")
class NextObservation(Foresight):
    """w_s times the mean squared error of the next observation that the policy foresees (MO-DT, arXiv:2308.16379)."""

    metrics: ClassVar = {
        OBSERVATION_ERROR: Metric(
            words="mean squared error of the next observation that the policy foresees",
            good="falling; its unit is that of observations",
        ),
    }
    coef: NonNegative = 1.0
    asks = (OBSERVATION_ERROR,)
    says = "{coef:g} times the squared error of the next observation that the policy foresees"
    equation = "+ {coef:g}·mean_i (f_{{t,i}} - s_{{t+1,i}})²"
    plain = "loss = loss + {coef!r} * (weight_bt * torch.where(active_bt, stats['observation_error'], 0)).sum()"


@part("regularize")
class NextToGo(Foresight):
    """w_R times the squared error of the return to go after the action that the policy foresees (MO-DT)."""

    metrics: ClassVar = {
        TO_GO_ERROR: Metric(
            words="mean squared error of the return to go that the policy foresees after its action",
            good="falling; its unit is the square of the largest return to go of the data",
        ),
    }
    coef: NonNegative = 1.0
    asks = (TO_GO_ERROR,)
    says = "{coef:g} times the squared error of the return to go that the policy foresees"
    equation = "+ {coef:g}·(F_t - R_{{t+1}})²"
    plain = "loss = loss + {coef!r} * (weight_bt * torch.where(active_bt, stats['to_go_error'], 0)).sum()"
