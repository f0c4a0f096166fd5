"""Regression of values of actions on their targets: the loss of a value learner (DQN, QMIX)."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch

OUTPUT = "action_value"


@part("objective")
class FittedValues(Objective):
    """½·(Q(s_t, a_t) - y_t)², where y_t is what the advantage part returns (Mnih et al. 2015; of teams: QMIX).

    Log-probs play no part: how to act follows from the values alone.
    """

    says = "fit the value of what was done to its target"
    equation = "½·(Q(s_t, a_t) - y_t)²"
    asks = (OUTPUT,)
    plain = "loss_bt = torch.where(active_bt, stats['action_value'] - adv_bt, 0).square() / 2"

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return the losses [B,T], differentiable in the output `action_value`."""
        value_bt, target_bt = batch.need(f"stats.{OUTPUT}", self.name), batch.need("advantage_bt", self.name)
        error_bt = torch.where(batch.active_bt, value_bt - target_bt, 0)
        return TokenLoss(error_bt.square() / 2, {"value_error": error_bt.square(), "value_mean": value_bt})

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows without an action."""
        return ~batch.active_bt.any(1)
