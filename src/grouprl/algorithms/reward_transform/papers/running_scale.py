"""Rewards in units of their spread over the run (PPO-max)."""

from __future__ import annotations

import torch
from typing_extensions import override

from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch


@part("reward_transform")
class RunningScale(RewardTransform):
    """Divide the reward by the spread of all rewards so far, `past.reward_std` (PPO-max, arXiv:2307.04964).

    With `center` their mean is subtracted before. A reward stays as it is while there is no spread.
    """

    center: bool = False

    def __call__(self, batch: Batch) -> Batch:
        """Return R ← (R - μ)/σ, or R/σ without `center`."""
        std_b = batch.need("past.reward_std", self.name)
        mean_b = batch.need("past.reward_mean", self.name) if self.center else 0.0
        scaled_b = (batch.reward_b - mean_b) / torch.where(std_b > 0, std_b, 1)
        return batch.replace(reward_b=torch.where(std_b > 0, scaled_b, batch.reward_b))

    @override
    def needs(self) -> tuple[str, ...]:
        return ("past.reward_std", *(["past.reward_mean"] if self.center else []))

    @override
    def words(self) -> str:
        return f"divide the reward{' less its running mean' if self.center else ''} by the running spread of rewards"

    @override
    def formula(self) -> str:
        return "R ← (R - μ)/σ, over all rewards so far" if self.center else "R ← R/σ, σ over all rewards so far"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        scaled = "(reward_b - past['reward_mean'])" if self.center else "reward_b"
        return f"""std_b = past['reward_std']
reward_b = torch.where(std_b > 0, {scaled} / torch.where(std_b > 0, std_b, 1), reward_b)"""
