"""Rewards in units of their group's mean: maximum likelihood of being right."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from grouprl.algorithms.advantage.advantage import GroupAdvantage
from grouprl.algorithms.part import part
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("advantage")
class MeanScaled(GroupAdvantage):
    """MaxRL: (R - mean_g R)/(mean_g R + eps); 0 where the mean is not above 0.

    With rewards of 0 and 1 the gradient of E[R] is divided by the share of correct completions, which makes it, up to
    what a finite group misses, that of log P(right).
    """

    eps: Annotated[float, Field(ge=0)] = 1e-6
    says = "reward minus the mean of its group, divided by that mean; rewards must not be negative"
    equation = "A = (R - mean_g R) / (mean_g R + {eps:g})"
    plain = """mean_b = (same_bb * reward_b).sum(1) / same_bb.sum(1).clamp(min=1)
adv_b = torch.where(mean_b > 0, (reward_b - mean_b) / (mean_b + {eps!r}), 0)
adv_b = torch.where(counts_b & differs(reward_b, same_bb), adv_b, 0)
adv_bt = adv_b[:, None] * mask_bt"""

    def __call__(self, batch: Batch) -> Tensor:
        """Return (R - mean)/(mean + eps)."""
        reward_b, weight_b = batch.total_reward_b, batch.stats_b.to(batch.dtype)
        around_b = levels.relative(reward_b, batch.group_b, scale="none", weight_n=weight_b)
        mean_b = levels.mean(reward_b, batch.group_b, weight_b)
        scaled_b = around_b / torch.where(mean_b > 0, mean_b + self.eps, 1)
        return batch.broadcast(torch.where(mean_b > 0, scaled_b, 0))
