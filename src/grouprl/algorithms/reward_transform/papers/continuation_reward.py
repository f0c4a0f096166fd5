"""Rewards of prefixes by the rewards of their continuations (PPPO)."""

from __future__ import annotations

from grouprl.algorithms.outcome import right
from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch


@part("reward_transform")
class ContinuationReward(RewardTransform):
    """Set the reward to the number of right continuations of a completion's prefix, plus 1 if the completion is right
    (PPPO, arXiv:2512.15274).

    The number of right continuations of each row is `rewards['continuations']`.
    """

    says = "the reward is how many continuations of the completion's prefix are right, plus 1 if the completion is"
    equation = "R ← Σ_j [continuation j right] + [right]"
    reads = ("rewards.continuations",)
    plain = 'reward_b = rewards["continuations"] + correct_b.to(reward_b.dtype)'

    def __call__(self, batch: Batch) -> Batch:
        """Return R = number of right continuations + [right]."""
        number_b = batch.need("rewards.continuations", self.name).to(batch.dtype)
        return batch.replace(reward_b=number_b + right(batch).to(batch.dtype))
