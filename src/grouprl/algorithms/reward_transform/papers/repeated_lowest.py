"""Completions that another one of their group repeats are in the lowest category (PLaID++)."""

from __future__ import annotations

import torch

from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("reward_transform")
class RepeatedLowest(RewardTransform):
    """Give `lowest` to completions whose final answer (`keys.answer`) another one of their group has, too.

    Where rewards are ordered categories, such as stable, metastable and unstable, only what is sampled once can then be
    chosen (PLaID++, arXiv:2509.07150). Rewards below `lowest` stay.
    """

    lowest: float = 0.0
    reads = ("keys.answer",)
    says = "completions that others of their prompt repeat are worth {lowest:g} at most"
    equation = "R ← min(R, {lowest:g}) where another y' of the group has the same answer"
    plain = (
        'answer_bb = same_bb & (keys["answer"][:, None] == keys["answer"])\n'
        "reward_b = torch.where(answer_bb.sum(1) > 1, reward_b.clamp(max={lowest!r}), reward_b)"
    )

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with lower rewards of repeated completions."""
        answer_b, counted_b = batch.need("keys.answer", self.name), batch.stats_b.to(batch.dtype)
        times_b = levels.count(levels.cross(batch.group_b, answer_b), counted_b)
        lowered_b = batch.reward_b.clamp(max=self.lowest)
        return batch.replace(reward_b=torch.where(batch.stats_b & (times_b > 1), lowered_b, batch.reward_b))
