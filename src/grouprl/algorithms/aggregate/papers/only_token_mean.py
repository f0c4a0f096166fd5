"""DCPO's aggregation: a mean within each sequence, a sum over sequences."""

from __future__ import annotations

from torch import Tensor

from grouprl.algorithms.aggregate.aggregate import Aggregate
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("aggregate")
class OnlyTokenMean(Aggregate):
    """Mean over each sequence's tokens, summed over sequences (DCPO's Only Token Mean): B times `sequence_mean`."""

    says = "mean over each completion's tokens, summed over completions (the gradient grows with the batch)"
    equation = "Σ_i 1/|y_i| · Σ_t"
    plain = "weight_bt = active_bt.to(adv_bt.dtype) / active_bt.sum(1, keepdim=True).clamp(min=1)"

    def __call__(self, batch: Batch) -> Tensor:
        """Return w_t = 1 / |y|."""
        active_bt = batch.active_bt.to(batch.dtype)
        return active_bt / active_bt.sum(1, keepdim=True).clamp(min=1)
