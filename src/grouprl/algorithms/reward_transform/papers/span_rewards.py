"""Rewards of single tokens from praise and blame."""

from __future__ import annotations

import torch

from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch


@part("reward_transform")
class SpanRewards(RewardTransform):
    """Replace the reward: +1 for each token of a good part, -1 for each of a poor one (Text2Grad, arXiv:2505.22338).

    A token of both earns nothing. The parts are `marks.good` and `marks.poor`.
    """

    says = "the reward of each token is +1 in a good part of the completion, -1 in a poor one, and nothing else counts"
    equation = "r_t ← [good] - [poor],  R ← 0"
    reads = ("marks.good", "marks.poor")
    plain = (
        "reward_b = torch.zeros_like(reward_b)\n"
        'token_reward_bt = (marks["good"] & mask_bt).to(reward_b.dtype) - (marks["poor"] & mask_bt).to(reward_b.dtype)'
    )

    def __call__(self, batch: Batch) -> Batch:
        """Return r_t = [good] - [poor]."""
        good_bt, poor_bt = (batch.need(f"marks.{side}", self.name) & batch.mask_bt for side in ("good", "poor"))
        token_bt = good_bt.to(batch.dtype) - poor_bt.to(batch.dtype)
        return batch.replace(reward_b=torch.zeros_like(batch.reward_b), token_reward_bt=token_bt)
