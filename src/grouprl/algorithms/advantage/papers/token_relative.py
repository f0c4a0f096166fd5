"""Rewards relative to the mean and spread over the tokens of a group (HAPO)."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import GroupAdvantage
from grouprl.algorithms.part import part
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("advantage")
class TokenRelative(GroupAdvantage):
    """Reward relative to the mean and spread over the group's *tokens*: long completions count more (HAPO's TLGA).

    Every token carries its completion's reward, so Σ_tokens A = 0 in each group. A group in which some |A| reaches
    `limit` gets GRPO's advantage instead (arXiv:2509.16591).
    """

    eps: Annotated[float, Field(ge=0)] = 1e-6
    limit: Annotated[float, Field(gt=0)] | None = 5.0
    equation = "A = (R - Σ|y|R/Σ|y|) / (std_tokens R + {eps:g})"

    def __call__(self, batch: Batch) -> Tensor:
        """Return (R - mean)/(std_pop + eps), each completion counted |y| times."""
        reward_b, stats_b = batch.total_reward_b, batch.stats_b.to(batch.dtype)
        length_b = stats_b * batch.active_bt.sum(1)
        adv_b = levels.relative(reward_b, batch.group_b, scale="population_std", eps=self.eps, weight_n=length_b)
        if self.limit is not None:
            largest_b = levels.extreme(adv_b.abs(), batch.group_b, length_b, largest=True)
            grpo_b = levels.relative(reward_b, batch.group_b, eps=self.eps, weight_n=stats_b)
            adv_b = torch.where(largest_b >= self.limit, grpo_b, adv_b)
        return batch.broadcast(adv_b)

    @override
    def code(self) -> str:
        lines = [
            "length_bb = same_bb * active_bt.sum(1)  # rows weigh as much as they have tokens",
            f"adv_b = standardised(reward_b, length_bb, {self.eps!r}, 0) * (counts_b & active_bt.any(1))",
        ]
        if self.limit is not None:
            lines += [
                "largest_b = torch.where(length_bb > 0, adv_b.abs(), 0).amax(1)",
                f"grpo_b = standardised(reward_b, same_bb, {self.eps!r}) * counts_b",
                f"adv_b = torch.where(largest_b >= {self.limit!r}, grpo_b, adv_b)",
            ]
        return "\n".join([*lines, "adv_bt = adv_b[:, None] * mask_bt"])

    @override
    def words(self) -> str:
        limit = "" if self.limit is None else f"; groups with an |A| of {self.limit:g} or more as in GRPO"
        return f"reward minus the mean over the group's tokens, divided by their standard deviation{limit}"
