"""Methods that favour correct completions which the policy finds unlikely."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.filter.filter import MixedGroups
from grouprl.algorithms.method import Method
from grouprl.algorithms.reward_transform.papers.unlikeliness import Unlikeliness
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import (
    CLIPS,
    GROUP,
    KL,
    KL_NEED,
    PPO_CLIP,
)


def unlikeliness(
    base: Method,
    beta: Annotated[float, Field(ge=0, le=1)] = 0.25,
    filter_dead: bool = True,
) -> Method:
    """Compose GRPO with the unlikeliness reward.

    R·(1 - 0.25·k/G) by rank of likelihood, then GRPO on mixed groups; the paper's KL of 0.1 is off by default.
    """
    return base.with_parts(
        reward_transform=(Unlikeliness(beta=beta),),
        filter=(MixedGroups(),) if filter_dead else (),
        aggregate=TokenMean(),
    )


entry(
    "unlikeliness",
    unlikeliness,
    Card(
        title="GRPO with the unlikeliness reward",
        papers=[
            Paper("Rewarding the Unlikely: Lifting GRPO Beyond Distribution Sharpening", "2506.02355", 2025),
        ],
        summary=(
            "Correct completions earn more the less likely the policy found them, so that rare solutions are not lost."
        ),
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  A_i = (R_i - mean_g R)/(std_g R + eps),  "
            "R ← R·(1 - β·k_i/G),  k_i = rank of mean_t log π_old(y_t) in the group, 0 the least likely"
        ),
        defaults={
            "beta": "the paper: 0.25",
            **PPO_CLIP,
            "filter_dead": "the paper: groups all right or all wrong are removed, judged on the raw reward",
            "kl_coef": "off, so that no reference is needed; the paper has 0.1",
        },
        differs=[
            "The KL to the reference is off by default; the paper has 0.1.",
            "Completions of the same log-prob (the same completion sampled twice) share the mean of their ranks.",
        ],
        reduces=[
            Reduction(
                "dapo",
                ["mixed_groups"],
                settings={"beta": 0.0, "clip_high": 0.28},
                why="no discount; the token mean over mixed groups",
            ),
            Reduction(
                "grpo",
                ["mixed_groups", "equal_lengths"],
                settings={"beta": 0.0},
                why="no discount: GRPO; equal lengths make the two means agree",
            ),
        ],
        needs=["at least two completions per prompt", KL_NEED],
        source="AndreHe02/rewarding-unlikely-release ray_lean_trainer.py, examples/lean/grpo.sh",
        golden=[
            Golden(
                rewards=[1, 1, 0],
                lengths=[1, 1, 2],
                fields={"old_bt": [[-1.0], [-2.0], [-3.0, -3.0]]},
                log_ratio=[[0.0], [-1.0], [-2.0, -2.0]],
                advantage=[0.49319599, 0.65759465, -1.15079064],
                grad=[[-0.123299], [-0.16439866], [0.28769766] * 2],
                why="rewards 1 - 0.25·2/3, 1 - 0.25/3, 0: mean 7/12; four tokens, every ratio 1",
            )
        ],
        notes=["The paper's second remedy is more updates per rollout (batch.epochs: 2), so that the clip can act."],
        recommended={"group": 32, "learning_rate": 1e-6, "kl_coef": 0.1, "epochs": 2},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP, *KL),
)
