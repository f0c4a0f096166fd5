"""The variance of log-partition estimates over a group: a GFlowNet's loss without a learned partition function."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import RowLoss, counted
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.objective.regression import completion_value
from grouprl.algorithms.part import part
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.numbers import Positive


@part("objective")
class VarGrad(Objective):
    """The variance, over a group, of Σ_t log π(y_t) - A (log-partition variance, Zhang et al. 2023, arXiv:2302.05446;
    VarGrad, Richter et al. 2020, arXiv:2010.10436).

    With A = log R(x) + Σ_t log P_B, up to a constant of the group, π samples x in proportion to R(x) where it is 0.
    The estimate of log Z is the group's mean, so whatever sampled the rows, no ratio is needed. On-policy its gradient
    is twice the policy gradient with a group mean as baseline and the reward A - log π(y).
    """

    coef: Positive = 1.0
    couples: ClassVar[str] = "group"
    proportional = True
    says = "fit differences of log-probs between the rows of a group to differences of their log rewards"
    equation = "{coef:g}·(d_i - mean_g d)²,  d_i = Σ_t log π(y_t) - A_i"
    plain = """peer_bb = same_bb & counts_b & active_bt.any(1)  # rows that are compared
gap_b = torch.where(active_bt, logp_bt, 0).sum(1) - adv_bt.sum(1) / active_bt.sum(1).clamp(min=1)
apart_b = gap_b - (peer_bb * gap_b).sum(1) / peer_bb.sum(1).clamp(min=1)
loss_bt = ({coef!r} * apart_b.square() * peer_bb.diagonal())[:, None] * active_bt"""

    def __call__(self, logp_bt: Tensor, batch: Batch) -> RowLoss:
        """Return c·(d_i - mean_g d)² of row i."""
        weight_b = counted(batch)
        target_b = completion_value(batch.need("advantage_bt", self.name), batch.active_bt)
        gap_b = torch.where(batch.active_bt, logp_bt, 0).sum(1) - target_b
        apart_b = gap_b - levels.mean(gap_b, batch.group_b, weight_b)
        return RowLoss(self.coef * apart_b.square() * weight_b)

    @override
    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows that are alone in their group, or do not count in it."""
        weight_b = counted(batch)
        return (levels.count(batch.group_b, weight_b, batch.dtype) <= 1) | (weight_b == 0)
