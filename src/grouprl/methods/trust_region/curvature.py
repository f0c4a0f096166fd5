"""Methods that predict each token's step and leave out the harmful ones: CAPO."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.update.papers.curvature import CurvatureMask
from grouprl.core.numbers import NonNegative
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, PPO_CLIP, in_the_update


def capo(
    base: Method,
    tau_objective: NonNegative = 1e-2,
    tau_policy: NonNegative = 1e-4,
    symmetric: bool = True,
    model: Literal["adam", "sgd"] = "adam",
    top: Annotated[int, Field(ge=1)] = 64,
    eps: NonNegative = 1e-4,
) -> Method:
    """Compose GRPO with CAPO's token mask.

    Token mean of the clipped loss over the tokens whose predicted shifts of objective and policy are small.
    """
    return base.with_parts(
        aggregate=TokenMean(),
        update=CurvatureMask(objective=tau_objective, policy=tau_policy, symmetric=symmetric, model=model, top=top),
    )


entry(
    "capo",
    capo,
    Card(
        title="Curvature-Aware Policy Optimization",
        papers=[
            Paper(
                "Stabilizing Policy Gradients for Sample-Efficient Reinforcement Learning in LLM Reasoning",
                "2510.00819",
                2025,
            )
        ],
        summary="GRPO without the few tokens whose own step would change objective or policy too much.",
        formula=(
            "L = -1/n Σ_{t kept} min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i); kept: -τ_H < m_H < τ_H and m_F < τ_F,  "
            "m_H = lr·⟨g,G⟩ + ½lr²·A[(v·u)² - uᵀFu],  m_F = ½lr²(v·u)²,  v = e_a - π, g = A·v·hᵀ, u = G·h"
        ),
        defaults={
            "tau_objective": "τ_H, the authors' recipe for GRPO: 1e-2 (for Dr. GRPO 5e-4)",
            "tau_policy": "τ_F, the authors' recipe for GRPO: 1e-4 (for Dr. GRPO 1e-2 or 1e-3)",
            "symmetric": "the authors' recipes: both signs of m_H are bounded",
            "model": "the authors' recipes: Adam",
            "top": "our choice: 64 likeliest tokens",
            **PPO_CLIP,
            "eps": "the authors' code, as TRL: 1e-4",
        },
        differs=[
            "Adam's moments are those of the run's own optimiser: of the clipped gradient of the whole step, and where "
            "the output layer is tied to the embedding also of its use there. The authors keep moments of their own.",
            "The vocabulary is reduced token by token, to the sampled token and the likeliest; outside, u counts as 0.",
            "Weight decay is not part of the candidate step.",
            "Thresholds for whole completions and batches, which the recipes do not use, are not here.",
        ],
        reduces=[
            Reduction(
                "dapo", other={"clip_high": 0.2, "eps": 1e-4}, when=["mixed_groups"], why="the loss of the kept tokens"
            )
        ],
        needs=["at least two completions per prompt", "an output layer that is trained: no adapters, no capped logits"],
        source="luckeciano/stable-pg-llm src/open_r1/grpo_entropy_trainer.py, recipes/Qwen2.5-Math-7B/grpo",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 2],
                log_ratio=[[0.3], [-0.5, 0.1]],
                advantage=[0.70700680, -0.70700680],
                loss=0.16618688,
                grad=[[0.0], [0.0, 0.26045445]],
                why="no token left out: (-1.2 + 0.8 + 1.10517092)·A/3; e^0.1 alone is free",
            )
        ],
        notes=[
            in_the_update("GRPO with a token mean and eps 1e-4, no token left out"),
            "The shifts are those of a token that is the whole batch: m_H grows with lr and m_F with lr², so a much "
            "larger learning rate wants larger thresholds. tokens_rejected shows how many are left out; the authors "
            "see less than 8 %.",
        ],
        recommended={"learning_rate": 1.5e-5, "group": 8, "batch": 24, "kl_coef": 0.0},
    ),
    base="grpo",
    keeps=(*CLIPS, "scale", "alone"),
)
