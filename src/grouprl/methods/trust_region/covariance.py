"""Entropy control by covariance: Clip-Cov and KL-Cov restrain the few tokens that collapse the entropy."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.filter.filter import MixedGroups
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.covariance import ClipCov
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.objective.papers.kl_cov import KLCov
from grouprl.algorithms.refill.refill import DynamicSampling
from grouprl.core.numbers import NonNegative, Positive, PositiveShare
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import GROUP, ClipLow

PAPER = Paper("The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", "2505.22617", 2025)
Rounds = Annotated[int, Field(ge=1)]
SHARED = {
    "dynamic_sampling": "the authors' recipe: groups that are all right or all wrong are left out and sampled anew",
    "max_rounds": "as dapo: 10",
}
SOURCE = "PRIME-RL/Entropy-Mechanism-of-RL verl/trainer/ppo/core_algos.py, recipe/dapo; verl core_algos.py"
STEP = "Means of the covariance are over the optimiser step; the authors' code takes them over a micro-batch."
NEEDS = ["at least two completions per prompt", "all rows of an optimiser step together"]


def clip_cov(
    base: Method,
    share: PositiveShare = 2e-4,
    lower: float = 1.0,
    upper: float = 5.0,
    clip_low: ClipLow = 1.0,
    clip_high: Positive = 1.0,
    dynamic_sampling: bool = True,
    max_rounds: Rounds = 10,
) -> Method:
    """Compose Clip-Cov.

    Token mean of the clipped loss over mixed groups, zero for max(1, int(share·tokens)) random tokens whose
    covariance of advantage and log-prob lies within (lower, upper).
    """
    objective = ClipCov(clip_low=clip_low, clip_high=clip_high, share=share, lower=lower, upper=upper)
    return _over_mixed_groups(base, objective, max_rounds if dynamic_sampling else 0)


entry(
    "clip_cov",
    clip_cov,
    Card(
        title="Clip-Cov",
        papers=[PAPER],
        summary="Take the gradient from a few random tokens that are both likely and good: they collapse the entropy.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t [t not sampled] min(ρ_t A_i, clip(ρ_t, 1-ε_low, 1+ε_high) A_i),  sampled: "
            "max(1, share·tokens) random tokens with lower < (A - mean A)(log π - mean log π) < upper"
        ),
        defaults={
            "share": "the authors' scripts: 2e-4 of the tokens",
            "lower": "the authors' scripts: 1",
            "upper": "the authors' scripts: 5",
            "clip_low": "the authors' scripts: 1, which is practically no clip",
            "clip_high": "the authors' scripts: 1, which is practically no clip",
            **SHARED,
        },
        differs=[STEP, "The random choice is a hash of the current log-probs, so that it can be repeated."],
        reduces=[
            Reduction(
                "dapo",
                ["mixed_groups", "equal_lengths"],
                settings={"lower": 1e6, "upper": 2e6, "clip_low": 0.2, "clip_high": 0.28},
                why="no covariance is so large: nothing is sampled",
            )
        ],
        needs=NEEDS,
        source=SOURCE,
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 2],
                log_ratio=[[0.0, 0.0], [-4.0, 0.0]],
                advantage=[0.70710578, -0.70710578],
                loss=-0.176776445,
                grad=[[-0.176776445, -0.176776445], [0.0, 0.176776445]],
                why="log-probs -1, -1, -5, -1: covariances 0.7, 0.7, 2.1, -0.7; only the third lies in (1, 5)",
            )
        ],
        recommended={"group": 8, "learning_rate": 5e-7},
    ),
    base="grpo",
    keeps=GROUP,
)


def kl_cov(
    base: Method,
    share: PositiveShare = 2e-3,
    coef: NonNegative = 1.0,
    dynamic_sampling: bool = True,
    max_rounds: Rounds = 10,
) -> Method:
    """Compose KL-Cov.

    Token mean of -ρA over mixed groups, plus coef·|log ρ| for the max(1, int(share·tokens)) tokens with the largest
    covariance.
    """
    return _over_mixed_groups(base, KLCov(share=share, coef=coef), max_rounds if dynamic_sampling else 0)


entry(
    "kl_cov",
    kl_cov,
    Card(
        title="KL-Cov",
        papers=[PAPER],
        summary="No clip; the tokens with the largest covariance of log-prob and advantage pay for leaving the policy.",
        formula=("L = -1/Σ|y_i| Σ_i Σ_t (ρ_t A_i - β [t in top share of (A - mean A)(log π - mean log π)] |log ρ_t|)"),
        defaults={
            "share": "the authors' script for 7B: 2e-3 of the tokens (2e-4 for 32B)",
            "coef": "the authors' scripts: 1",
            **SHARED,
        },
        differs=[
            STEP,
            "A |log ρ| of at most 512 units in the last place of 1 (6e-5 in float32) is rounding, and counts as 0.",
        ],
        reduces=[
            Reduction(
                "dapo",
                ["on_policy", "mixed_groups", "equal_lengths"],
                why="the first update of a rollout: every ratio is 1 and |log ρ| is flat at 0",
            ),
            Reduction(
                "dapo",
                ["mixed_groups", "equal_lengths"],
                settings={"coef": 0.0},
                other={"clip_low": 1.0, "clip_high": 1e9},
                why="neither penalty nor clip: plain importance weighting",
            ),
        ],
        needs=[*NEEDS, "two or more updates per rollout, or the penalty is flat"],
        source=SOURCE,
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 2],
                log_ratio=[[0.0, 0.0], [-4.0, 0.0]],
                advantage=[0.70710578, -0.70710578],
                loss=0.826461317,
                grad=[[-0.176776445, -0.176776445], [-0.246762238, 0.176776445]],
                why="one token pays, the third: 0.7071·e^-4 + 4, slope 0.7071·e^-4 - 1; mean over four",
            )
        ],
        recommended={"group": 8, "learning_rate": 5e-7},
    ),
    base="grpo",
    keeps=GROUP,
)


def _over_mixed_groups(base: Method, objective: Objective, rounds: int) -> Method:
    """Return `base` with another objective, a token mean and, if `rounds` allows, only mixed groups."""
    return base.with_parts(
        filter=(MixedGroups(),) if rounds else (),
        objective=objective,
        aggregate=TokenMean(),
        refill=DynamicSampling(max_rounds=rounds) if rounds else None,
    )
