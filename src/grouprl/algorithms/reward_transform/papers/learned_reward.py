"""The reward of a model in place of the task's (ARMAP)."""

from __future__ import annotations

from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch


@part("reward_transform")
class LearnedReward(RewardTransform):
    """Replace the reward by what the trajectory reward model says, `stats.trajectory_reward` (ARMAP)."""

    says = "the reward is what the trajectory reward model says, not what the task does"
    equation = "R ← r(x, h)"
    reads = ("stats.trajectory_reward",)

    def __call__(self, batch: Batch) -> Batch:
        """Return R = r(x, h)."""
        reward_b = batch.need("stats.trajectory_reward", self.name)[:, 0]
        return batch.replace(reward_b=reward_b, token_reward_bt=None)
