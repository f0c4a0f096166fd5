"""What becomes of completions that were cut off: no reward, or no advantage."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.advantages.normalize import Normalize
from grouprl.algorithms.part import part
from grouprl.algorithms.rewards.shaping import RewardTransform
from grouprl.core.batch import Batch


@part("reward_transform")
class FailTruncated(RewardTransform):
    """A completion that hit its limit earns nothing: min(R, 0) (PALU, arXiv:2510.10168)."""

    says = "a completion that was cut off earns nothing, whatever it says"
    equation = "R ← min(R, 0) if truncated"
    reads = ("truncated_b",)

    def __call__(self, batch: Batch) -> Batch:
        """min(R, 0) where the completion was cut off."""
        cut_b = batch.need("truncated_b", self.name)
        return batch.replace(reward_b=torch.where(cut_b, batch.reward_b.clamp(max=0), batch.reward_b))


@part("advantage_transform")
class ZeroTruncated(Normalize):
    """Advantage 0 for completions that hit the length limit (SRPO, arXiv:2504.14286).

    Their rewards count in the group's statistics and their tokens in the denominators; `drop_truncated` takes the
    tokens out as well.
    """

    says = "completions that were cut off get advantage 0; their tokens still count in the denominators"
    equation = "A ← A·[not truncated]"
    reads = ("truncated_b",)

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """A·[not truncated]."""
        return torch.where(batch.need("truncated_b", self.name)[:, None], 0, adv_bt)
