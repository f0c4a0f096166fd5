"""Rewards whose components change weight during training."""

from __future__ import annotations

import math

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError, suggest


@part("reward_transform")
class Annealed(RewardTransform):
    """Move the reward from some of its components to others along a cosine (Datarus-R1, arXiv:2508.13382).

    R ← w·Σ fading + (1 - w)·Σ growing with w = (1 + cos πu)/2 and u = step/(steps - 1): 1 at the first step, 0 at the
    last. Components count as they are, without the weights that they have in a sum.
    """

    fading: tuple[str, ...] = ("format",)
    growing: tuple[str, ...] = ("accuracy",)
    reads = ("rewards", "step", "steps")

    def __call__(self, batch: Batch) -> Batch:
        """Return R ← w·Σ fading + (1 - w)·Σ growing."""
        step, steps = batch.need("step", self.name), batch.need("steps", self.name)
        share = (1 + math.cos(math.pi * min(step / max(steps - 1, 1), 1.0))) / 2
        fading_b, growing_b = self._sum(self.fading, batch), self._sum(self.growing, batch)
        return batch.replace(reward_b=share * fading_b + (1 - share) * growing_b)

    def _sum(self, names: tuple[str, ...], batch: Batch) -> Tensor:
        """Return [B] sum of reward components."""
        total_b = batch.reward_b * 0
        for name in names:
            if name not in batch.rewards:
                known = suggest(name, batch.rewards) if batch.rewards else "This batch has no components."
                raise InputError(f"{self.name}: there is no reward component '{name}'", remedy=known)
            total_b = total_b + batch.rewards[name].to(batch.dtype)
        return total_b

    @override
    def words(self) -> str:
        return f"move the reward along a cosine from {' + '.join(self.fading)} to {' + '.join(self.growing)}"

    @override
    def formula(self) -> str:
        fading, growing = (" + ".join(f"R_{name}" for name in names) for names in (self.fading, self.growing))
        return f"R ← w·({fading}) + (1 - w)·({growing}),  w = (1 + cos(π·step/(steps - 1)))/2"
