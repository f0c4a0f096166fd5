"""A reward that comes from the policy alone: its self-certainty (INTUITOR)."""

from __future__ import annotations

import torch

from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch


@part("reward_transform")
class CertaintyReward(RewardTransform):
    """Replace the reward by the completion's self-certainty, mean_t[logsumexp z_t - mean z_t] (arXiv:2505.19590).

    That is the mean KL(uniform || π_t) plus log V, under the policy that sampled the completion; no verifier is used.
    """

    blind = "the policy's certainty"
    says = "the reward is how certain the policy was of its completion's tokens, not what the verifier says"
    equation = "R ← mean_t [logsumexp(z_t) - mean_j z_tj]"
    reads = ("stats.certainty",)
    plain = 'reward_b = torch.where(mask_bt, stats["certainty"], 0).sum(1) / mask_bt.sum(1).clamp(min=1)'

    def __call__(self, batch: Batch) -> Batch:
        """Return R = mean_t u_t."""
        certainty_bt = torch.where(batch.mask_bt, batch.need("stats.certainty", self.name), 0)
        return batch.replace(reward_b=certainty_bt.sum(1) / batch.length_b.clamp(min=1), token_reward_bt=None)
