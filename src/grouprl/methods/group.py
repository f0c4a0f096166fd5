"""GRPO and its nearest kin: a group baseline, PPO's clip, different denominators."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.levels import Alone, Scale
from grouprl.method import Method
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.parts.advantage import Relative
from grouprl.parts.aggregate import SequenceMean
from grouprl.parts.objective import Clipped

NonNegative = Annotated[float, Field(ge=0)]


@entry(
    "grpo",
    Card(
        title="Group Relative Policy Optimization",
        papers=[
            Paper(
                "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", "2402.03300", 2024
            )
        ],
        summary="Judge each answer against the mean and spread of its group; PPO clip; no critic.",
        formula="L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  A_i = (R_i - mean_g R) / (std_g R + eps)",
        golden=[
            Golden(rewards=[1, 0, 0, 0], lengths=[2, 1, 1, 1], advantage=[1.499997, -0.499999, -0.499999, -0.499999])
        ],
    ),
)
def grpo(
    clip_low: Annotated[float, Field(ge=0, le=1)] = 0.2,
    clip_high: Annotated[float, Field(gt=0)] = 0.2,
    scale: Scale = "sample_std",
    eps: NonNegative = 1e-6,
    alone: Alone = "zero",
) -> Method:
    """Compose GRPO (outcome supervision)."""
    return Method(
        advantage=Relative("group", center="mean", scale=scale, eps=eps, alone=alone),
        objective=Clipped(low=clip_low, high=clip_high),
        aggregate=SequenceMean(),
    )
