"""Rewards of turns divided by the running deviation of returns."""

from __future__ import annotations

from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch
from grouprl.core.numbers import Positive


@part("reward_transform")
class ScaledRewards(RewardTransform):
    """Divide every reward by `past.return_std`, clipped to ±`limit` (Engstrom et al. 2020, arXiv:2005.12729, "reward
    scaling"; Stable-Baselines3's VecNormalize).

    Goes before what places rewards on turns. Logged rewards and evaluations are as the environment gave them.
    """

    limit: Positive = 10.0
    says = "divide rewards of turns by the running deviation of returns, and clip them to ±{limit:g}"
    equation = "r_k ← clip(r_k / σ, ±{limit:g}),  σ the deviation of discounted returns so far"
    reads = ("turn_reward_bs", "past.return_std")
    plain = (
        'std_b1 = past["return_std"][:, None]\n'
        "scaled_bs = (turn_reward_bs / std_b1).clamp(-{limit!r}, {limit!r})\n"
        "reward_b = (reward_b - turn_reward_bs.sum(1)) / std_b1[:, 0] + scaled_bs.sum(1)\n"
        "turn_reward_bs = scaled_bs"
    )

    def __call__(self, batch: Batch) -> Batch:
        """Return r_k / σ."""
        std_b = batch.need("past.return_std", self.name)
        before_bs = batch.need("turn_reward_bs", self.name)
        scaled_bs = (before_bs / std_b[:, None]).clamp(-self.limit, self.limit)
        rest_b = (batch.reward_b - before_bs.sum(1)) / std_b
        return batch.replace(turn_reward_bs=scaled_bs, reward_b=rest_b + scaled_bs.sum(1))
