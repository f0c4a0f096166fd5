"""A mean in which each token counts by its multiplier."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.aggregate.aggregate import Aggregate
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("aggregate")
class WeightedMean(Aggregate):
    """Mean over the tokens of the step, each counting by its multiplier: 1 / Σ|m_t|, so zeros do not count."""

    says = "mean over the tokens of the optimiser step, each counting by its multiplier (0: not at all)"
    equation = "1/Σ|m_t| · Σ_i Σ_t"
    plain = (
        "total = (active_bt * factor_bt.abs()).sum()\n"
        "weight_bt = active_bt * torch.where(total > 0, 1 / torch.where(total > 0, total, 1), 0)"
    )

    def __call__(self, batch: Batch) -> Tensor:
        """Return w_t = 1 / Σ|m|."""
        active_bt = batch.active_bt.to(batch.dtype)
        total = (active_bt if batch.multiplier_bt is None else active_bt * batch.multiplier_bt.abs()).sum()
        return active_bt * torch.where(total > 0, 1 / torch.where(total > 0, total, 1), 0)
