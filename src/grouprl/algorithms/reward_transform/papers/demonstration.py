"""Rewards in groups with a demonstration, shaped so that it does not dominate the policy's own completions."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch

EXPONENT_LIMIT = 20.0


@part("reward_transform")
class AsymmetricReward(RewardTransform):
    """TempSamp-R1's shaping of all rewards: the top is compressed, the bottom expanded (arXiv:2509.18056).

    R at or above τ: τ + a1·ln(R - τ + 1); below: τ - (exp(a2(τ - R)) - 1)/(exp(a2) - 1). Continuous and increasing.
    Meant for rewards within about [0, 1]; the exponent is at most 20.
    """

    tau: float = 0.8
    top: Annotated[float, Field(gt=0)] = 0.01
    bottom: Annotated[float, Field(gt=0)] = 1.0
    says = "compress rewards above {tau:g} (logarithm times {top:g}), expand those below (exponential)"
    plain = (
        "above_b = (reward_b - {tau!r}).clamp(min=0)\n"
        "below_b = ({bottom!r} * ({tau!r} - reward_b)).clamp(min=0, max=EXPONENT_LIMIT)\n"
        "low_b = {tau!r} - torch.expm1(below_b) / math.expm1({bottom!r})\n"
        "high_b = {tau!r} + {top!r} * torch.log1p(above_b)\n"
        "reward_b = torch.where(reward_b >= {tau!r}, high_b, low_b)"
    )

    def __call__(self, batch: Batch) -> Batch:
        """Shape every reward."""
        above_b = (batch.reward_b - self.tau).clamp(min=0)
        below_b = (self.bottom * (self.tau - batch.reward_b)).clamp(min=0, max=EXPONENT_LIMIT)
        low_b = self.tau - torch.expm1(below_b) / math.expm1(self.bottom)
        high_b = self.tau + self.top * torch.log1p(above_b)
        return batch.replace(reward_b=torch.where(batch.reward_b >= self.tau, high_b, low_b))

    @override
    def formula(self) -> str:
        low = f"{self.tau:g} - (e^({self.bottom:g}({self.tau:g} - R)) - 1)/(e^{self.bottom:g} - 1)"
        return f"R ← {self.tau:g} + {self.top:g}·ln(R - {self.tau:g} + 1) if R ≥ {self.tau:g} else {low}"


@part("reward_transform")
class DemonstrationReward(RewardTransform):
    """Scale the reward of demonstrations down, so that they dominate their group less."""

    factor: Annotated[float, Field(ge=0)] = 0.8
    says = "the reward of demonstrations counts {factor:g} times"
    equation = "R ← {factor:g}·R on demonstrations"
    idle_at = ("factor", 1, "demonstration_reward has no effect: its factor is 1")

    def __call__(self, batch: Batch) -> Batch:
        """Return factor·R on demonstrations."""
        shown_b = batch.from_source("demonstration")
        return batch.replace(reward_b=torch.where(shown_b, self.factor * batch.reward_b, batch.reward_b))
