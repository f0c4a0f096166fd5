"""A reward that is highest for thoughts of a falling budget (RMT)."""

from __future__ import annotations

from torch import Tensor

from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch
from grouprl.core.numbers import Count, NonNegative


@part("reward_transform")
class TriangularLength(RewardTransform):
    """RMT: add a triangle over the length of the completion, with its peak at a budget that falls over the run.

    R + coef·max(0, 1 - ||y| - b|/width); b goes evenly from `first` tokens to `last` between the first and the last
    step. The idea is Reinforcement Mid-Training's; its shape and its numbers are ours. Differs: the whole
    completion counts, since what is predicted after the thought has nearly always the same length.
    """

    first: Count = 12
    last: Count = 6
    width: Count = 4
    coef: NonNegative = 0.2
    says = "add up to {coef:g} for lengths within {width} tokens of a budget that falls from {first} to {last}"
    equation = "R ← R + {coef:g}·max(0, 1 - ||y| - b|/{width}),  b from {first} to {last}"
    reads = ("step", "steps")
    idle_at = ("coef", 0, "triangular_length has no effect: coef is 0")

    def __call__(self, batch: Batch) -> Batch:
        """Return R + coef·triangle."""
        length_b = batch.length_b.to(batch.dtype)
        return batch.replace(reward_b=batch.reward_b + self.coef * triangle(length_b, self.budget(batch), self.width))

    def budget(self, batch: Batch) -> float:
        """Return the budget at the batch's step."""
        step, steps = batch.need("step", self.name), batch.need("steps", self.name)
        return self.first + (self.last - self.first) * min(1.0, step / max(1, steps - 1))


def triangle(length_b: Tensor, budget: float, width: float) -> Tensor:
    """Return [B]: 1 at the budget, falling evenly to 0 at `width` tokens from it."""
    return (1 - (length_b - budget).abs() / width).clamp(min=0)
