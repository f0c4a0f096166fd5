"""A penalty for completions that hit the limit (TRL's PPO trainer)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative

if TYPE_CHECKING:
    from torch import Tensor


@part("reward_transform", name="missing_eos")
class MissingEOS(RewardTransform):
    """Subtract a penalty from the reward of completions that hit the limit instead of ending (TRL's PPO trainer)."""

    penalty: NonNegative = 1.0
    says = "subtract {penalty:g} from the reward of completions that were cut off"
    equation = "R ← R - {penalty:g}·[truncated]"
    reads = ("truncated_b",)
    idle_at = ("penalty", 0, "the missing-EOS penalty has no effect: it is 0")

    def __call__(self, batch: Batch) -> Batch:
        """Return R = R - penalty·[truncated]."""
        truncated_b: Tensor = batch.need("truncated_b", self.name)
        return batch.replace(reward_b=batch.reward_b - self.penalty * truncated_b.to(batch.dtype))
