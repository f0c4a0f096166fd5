"""Advantages in groups with a demonstration: sampled completions are compared among themselves."""

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
class AnchoredRelative(GroupAdvantage):
    """Normalise the sampled completions by themselves; a demonstration gets λ times their largest advantage.

    From TempSamp-R1 (arXiv:2509.18056)."""

    anchor: Annotated[float, Field(ge=0)] = 1.2
    eps: Annotated[float, Field(ge=0)] = 1e-6
    says = (
        "reward minus the mean of the sampled completions, divided by their standard deviation; a demonstration "
        "gets {anchor:g} times the best of them"
    )
    equation = "A = (R - mean_sampled)/(std_sampled + {eps:g});  demonstrations: {anchor:g}·max_sampled A"

    def __call__(self, batch: Batch) -> Tensor:
        """Return A_i = (R_i - mean)/(std + eps) over sampled completions; λ·max_g A on demonstrations."""
        shown_b = batch.from_source("demonstration")
        sampled_b = (batch.stats_b & ~shown_b).to(batch.dtype)
        adv_b = levels.relative(batch.total_reward_b, batch.group_b, eps=self.eps, weight_n=sampled_b)
        best_b = levels.extreme(adv_b, batch.group_b, sampled_b, largest=True)
        return batch.broadcast(torch.where(shown_b & batch.stats_b, self.anchor * best_b, adv_b))
