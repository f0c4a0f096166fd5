"""No reward for completions that hit their limit (PALU)."""

from __future__ import annotations

import torch

from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch


@part("reward_transform")
class FailTruncated(RewardTransform):
    """A completion that hit its limit earns nothing: min(R, 0) (PALU, arXiv:2510.10168)."""

    says = "a completion that was cut off earns nothing, whatever it says"
    equation = "R ← min(R, 0) if truncated"
    reads = ("truncated_b",)
    plain = "reward_b = torch.where(truncated_b, reward_b.clamp(max=0), reward_b)"

    def __call__(self, batch: Batch) -> Batch:
        """Return min(R, 0) for completions that were cut off, R for the others."""
        cut_b = batch.need("truncated_b", self.name)
        return batch.replace(reward_b=torch.where(cut_b, batch.reward_b.clamp(max=0), batch.reward_b))
