"""A mean over each group's tokens (ScaleRL)."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.aggregate.aggregate import Aggregate, counted
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("aggregate")
class GroupMean(Aggregate):
    """Mean over the tokens of each group, then mean over groups: every prompt weighs the same (ScaleRL)."""

    says = "mean over the tokens of each prompt's completions, then mean over prompts"
    equation = "1/#g · Σ_g 1/Σ_{{i∈g}}|y_i| · Σ_{{i∈g}} Σ_t"
    plain = """groups = len(torch.unique(group_b[active_bt.any(1)]))
tokens_b = ((group_b[:, None] == group_b) * active_bt.sum(1)).sum(1)
weight_bt = active_bt.to(adv_bt.dtype) / tokens_b.clamp(min=1)[:, None] / max(groups, 1)"""

    def __call__(self, batch: Batch) -> Tensor:
        """Return w_t = 1 / (groups · Σ_{i∈g}|y_i|)."""
        active_bt = counted(batch)
        tokens_b = levels.total(active_bt.sum(1), batch.group_b)
        groups = len(torch.unique(batch.group_b[batch.active_bt.any(1)]))
        return active_bt / tokens_b.clamp(min=1)[:, None] / max(groups, 1)

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part equals sequence_mean if every group holds one completion."""
        if run.group_size == 1:
            return ["group_mean is the same as sequence_mean: every group holds one completion"]
        return []
