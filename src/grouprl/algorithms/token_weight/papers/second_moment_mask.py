"""A mask that bounds the second moment of the importance ratios of a step (M2PO)."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.token_weight.token_weight import TokenWeight, mismatch_ratio
from grouprl.core.batch import Batch


@part("token_weight")
class SecondMomentMask(TokenWeight):
    """M2PO's mask: drop the tokens with the largest (log π_old/π_behavior)² until the mean of the rest is `threshold`.

    The second moment bounds the distance between behaviour and policy, and unlike the mean it cannot cancel out. It is
    computed over all active tokens of the rollout; denominators still count dropped tokens. Tokens that tie at the
    limit are all dropped.
    """

    threshold: Annotated[float, Field(gt=0)] = 0.04
    says = (
        "leave out the tokens on which policy and sampler differ most, until the mean square of log "
        "π_old/π_behavior over the others is {threshold:g}"
    )
    equation = "× [among the smallest (log π_old/π_behavior)², mean ≤ {threshold:g}]"
    reads = ("old_bt", "behavior_bt")
    plain = (
        "square_bt = torch.where(active_bt, old_bt - behavior_bt, 0).clamp(-20, 20).square()\n"
        "sorted_n = square_bt[active_bt].sort().values\n"
        "within = int((sorted_n.cumsum(0) / torch.arange(1, len(sorted_n) + 1) <= {threshold!r}).sum())\n"
        "least = sorted_n[within] if within < len(sorted_n) else torch.inf\n"
        "factor_bt = factor_bt * (square_bt < least)"
    )

    def __call__(self, batch: Batch) -> Tensor:
        """Return 1 where (log w_t)² is among the smallest whose mean is at most the threshold, else 0."""
        square_bt = mismatch_ratio(batch, "token").log().square()
        sorted_n = square_bt[batch.active_bt].sort().values
        mean_n = sorted_n.cumsum(0) / torch.arange(1, len(sorted_n) + 1, device=sorted_n.device)
        within = int((mean_n <= self.threshold).sum())
        if within == len(sorted_n):
            return torch.ones_like(square_bt)
        return ((square_bt < sorted_n[within]) & batch.active_bt).to(square_bt.dtype)

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if the sampler is exact."""
        return ["second_moment_mask has no effect: the sampler is exact"] if run.exact_sampler else []
