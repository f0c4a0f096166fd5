"""A discount on correct completions that the policy already found likely."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch


@part("reward_transform")
class Unlikeliness(RewardTransform):
    """Discount the reward of correct completions that the policy found likely (arXiv:2506.02355): R·(1 - β·k/G).

    k is the rank of the completion's mean log-prob at the start of the update, 0 for the least likely of its group of
    G; equal ones share the mean of their ranks. Rewards of 0 and below stay.
    """

    beta: Annotated[float, Field(ge=0, le=1)] = 0.25
    says = "take up to {beta:g} of their reward from correct completions, more the likelier the policy found them"
    equation = "R ← R·(1 - {beta:g}·k/G),  k = rank of mean_t log π_old, 0 the least likely"
    reads = ("old_bt",)
    plain = (
        "log_b = torch.where(mask_bt, old_bt, 0).sum(1) / mask_bt.sum(1).clamp(min=1)\n"
        "rank_b, size_b = shared_rank(log_b, group_b)\n"
        "reward_b = reward_b - {beta!r} * rank_b / size_b * reward_b.clamp(min=0)"
    )
    idle_at = ("beta", 0, "unlikeliness has no effect: its beta is 0")

    def __call__(self, batch: Batch) -> Batch:
        """Return R - β·k/G·max(R, 0)."""
        logp_bt = torch.where(batch.mask_bt, batch.need("old_bt", self.name), 0)
        rank_b, size_b = shared_rank(logp_bt.sum(1) / batch.length_b.clamp(min=1), batch.group_b)
        discount_b = self.beta * rank_b / size_b * batch.reward_b.clamp(min=0)
        return batch.replace(reward_b=batch.reward_b - discount_b)


def shared_rank(value_b: Tensor, id_b: Tensor) -> tuple[Tensor, Tensor]:
    """Return [B] rank of each value in its segment, 0 for the smallest, equal values sharing their mean rank; [B]
    sizes.
    """
    same_bb = id_b[:, None] == id_b[None]
    below_b = (same_bb & (value_b[None] < value_b[:, None])).sum(1).to(value_b.dtype)
    equal_b = (same_bb & (value_b[None] == value_b[:, None])).sum(1).to(value_b.dtype)
    return below_b + (equal_b - 1) / 2, same_bb.sum(1).to(value_b.dtype)
