"""GRPO with token weights: by probability (AR), by entropy and advantage (EGSW)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.token_weight.papers.entropy_guided import EntropyGuided
from grouprl.algorithms.token_weight.probability_weight import ProbabilityWeight
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, KL_NEED, PPO_CLIP

AR_PAPER = Paper("Do Not Let Low-Probability Tokens Over-Dominate in RL for LLMs", "2505.12929", 2025)


def advantage_reweighting(
    base: Method,
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.2,
    clip_high: Positive = 0.24,
    kl_coef: NonNegative = 0.001,
) -> Method:
    """Compose GRPO with Advantage Reweighting.

    Token mean of the clipped loss times α·π_old(y_t) + 1 - α, plus β·KL, in one update.
    """
    return base.with_parts(
        token_weight=(ProbabilityWeight(alpha=alpha),),
        aggregate=TokenMean(),
    )


entry(
    "advantage_reweighting",
    advantage_reweighting,
    Card(
        title="Advantage Reweighting (AR)",
        papers=[AR_PAPER],
        summary="GRPO in which an unlikely token counts less, because its gradient is large by itself.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε_low, 1+ε_high) A_t) + β·KL,  "
            "A_t = (α·π_old(y_t) + 1 - α)·(R_i - mean_g R)/(std_g R + eps)"
        ),
        defaults={
            "alpha": "the authors' scripts for AR alone: 0.2 (0.3 together with Lopti)",
            "clip_low": "the authors' scripts",
            "clip_high": "the authors' scripts: 0.24",
            "kl_coef": "the authors' scripts: 0.001",
        },
        differs=[
            "Only Advantage Reweighting. Lopti, the paper's second part, is the method lopti; both are ar_lopti.",
        ],
        reduces=[
            Reduction(
                "grpo",
                ["equal_lengths"],
                settings={"alpha": 0.0, "kl_coef": 0.0},
                other={"clip_high": 0.24},
                why="every weight is 1",
            )
        ],
        needs=["at least two completions per prompt", KL_NEED],
        source="zhyang2226/AR-Lopti verl/trainer/ppo/ray_trainer.py (compute_reweight_advantage), scripts",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 2],
                log_ratio=[[0.1], [0.0, 0.0]],
                settings={"kl_coef": 0.0},
                advantage=[0.70710578, -0.70710578],
                loss=0.18424846,
                grad=[[-0.22755858], [0.20590352, 0.20590352]],
                why="old log-probs are -1: weight 0.2/e + 0.8 = 0.87357589; three tokens; e^0.1 is free",
            )
        ],
        recommended={"group": 8, "learning_rate": 1e-6, "temperature": 0.7},
    ),
    base="grpo",
    keeps=(*GROUP, "clip_low", "kl_estimator"),
)


def egsw(
    base: Method,
    alpha: NonNegative = 1.0,
    temperature: Positive = 1.0,
    level: Literal["token", "sequence"] = "token",
    kl_coef: NonNegative = 0.04,
) -> Method:
    """Compose GRPO with entropy-guided weights.

    Every token's clipped loss times softmax_g((A + α·H_t)/P) over the group's completions at the same step (or over
    whole completions); the KL is not weighted.
    """
    return base.with_parts(
        token_weight=(EntropyGuided(alpha=alpha, temperature=temperature, level=level),),
    )


entry(
    "egsw",
    egsw,
    Card(
        title="Entropy-Guided Sequence Weighting",
        papers=[
            Paper(
                "Entropy-guided sequence weighting for efficient exploration in RL-based LLM fine-tuning",
                "2503.22456",
                2025,
            )
        ],
        summary="GRPO in which good and uncertain completions weigh more: a softmax over advantage and entropy.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t w_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i) + β·KL,  "
            "w_t = softmax over the group at step t of (A_i + α·H_t)/P"
        ),
        defaults={
            "alpha": "our choice: 1; the paper's scale of the entropy was not seen",
            "temperature": "recalled from the paper: P of about 1 to 2",
            "level": "per step, the paper's first form",
            **PPO_CLIP,
            "kl_coef": "GRPO's 0.04: the paper keeps GRPO's KL, its number was not seen",
        },
        differs=["Entropies are those of the sampling policy: the same as the current one's before the first update."],
        reduces=[
            Reduction(
                "grpo",
                ["one_group", "equal_lengths"],
                settings={"temperature": 1e12, "kl_coef": 0.0},
                scale=0.25,
                why="P without bound: four completions weigh 1/4 each",
            ),
            Reduction(
                "dr_grpo",
                ["one_group", "equal_lengths"],
                settings={"temperature": 1e12, "kl_coef": 0.0},
                scale=None,
                why="P without bound: uniform weights; one group has one standard deviation",
            ),
        ],
        needs=["at least two completions per prompt", "entropies of the sampler", KL_NEED],
        confidence="abstract-only",
        uncertain="The values of α and P, and how the paper treats steps that only some completions reach.",
        source="the paper's abstract",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                fields={"entropy_bt": [[0.5, 1.0], [0.2]]},
                settings={"kl_coef": 0.0},
                advantage=[0.70710578, -0.70710578],
                loss=-0.27261495,
                grad=[[-0.14979713, -0.17677645], [0.05395862]],
                why="step 1: 1/(1 + e^-1.71421156) = 0.84738175 and the rest; step 2 has one completion, weight 1",
            ),
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                fields={"entropy_bt": [[0.5, 1.0], [0.2]]},
                settings={"kl_coef": 0.0, "level": "sequence", "alpha": 2.0, "temperature": 2.0},
                grad=[[-0.13762532, -0.13762532], [0.07830225]],
                why="scores (0.7071 + 2·0.75)/2 and (-0.7071 + 2·0.2)/2: weights 0.77852748 and 0.22147252",
            ),
        ],
        notes=[
            "Towards the end of the longest completion few completions are left at a step, and its tokens weigh more."
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP, "kl_estimator"),
)
