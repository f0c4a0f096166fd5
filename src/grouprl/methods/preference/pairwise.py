"""Pairwise methods: completions of one prompt are pushed apart two by two."""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.advantage.advantage import RawReward
from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.papers.pairwise import PairwiseGradient
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, KL_NEED

TWO = "at least two completions per prompt"


def p3o(base: Method, clip_low: float, clip_high: float, clip: Literal["separate", "joint"] = "separate") -> Method:
    """Compose P3O.

    Mean over pairs of -½·w_1 w_2 (R_1 - R_2)(log π(y_1) - log π(y_2)) with detached weights. Version 2 (`joint`) checks
    the ratio of the two ratios and drops both halves; it uses only `clip_high`.
    """
    return base.with_parts(
        advantage=RawReward(),
        advantage_transform=(),
        objective=PairwiseGradient(clip_low=clip_low, clip_high=clip_high, clip=clip),
        aggregate=SequenceMean(),
        critic=None,
    )


entry(
    "p3o",
    p3o,
    Card(
        title="Pairwise Proximal Policy Optimization",
        papers=[
            Paper(
                "Pairwise Proximal Policy Optimization: Harnessing Relative Feedback for LLM Alignment",
                "2310.00212",
                2023,
            )
        ],
        summary=(
            "Policy gradient on the reward difference of two completions, weighted by both ratios, clipped by "
            "completion."
        ),
        formula=(
            "∇L = -mean_pairs ½·w_1 w_2 (R_1 - R_2)(K_1 ∇log π(y_1) - K_2 ∇log π(y_2)),  w = π/π_old(y);  "
            "K_i = 0 where w_i has left [1-ε, 1+ε] in the direction of its difference"
        ),
        defaults={
            "clip": "separate: version 1 of the two that the paper gives",
            "clip_low": "customary (PPO's 0.2); the paper's number was not seen",
            "clip_high": "customary (PPO's 0.2); the paper's number was not seen",
            "kl_coef": "off, so that no reference is needed; the paper folds a KL into the reward",
            "kl_estimator": "log π_old - log π_ref, summed over the completion: k1",
        },
        differs=[
            "More than two completions: the mean over all pairs of the group.",
            "The KL in the reward is off by default.",
            "Log-ratios of whole completions are held within ±20.",
        ],
        reduces=[
            Reduction("rloo", ["on_policy"], why="half the differences, over all pairs, are R - mean of the others"),
            Reduction("rebel", ["on_policy"], scale=0.25, why="its residual is the difference of rewards, times 2η"),
        ],
        needs=[TWO, KL_NEED],
        confidence="partly",
        uncertain="The exact algebra of the two clipped objectives and their ε.",
        source="notes on the paper and its authors' summary",
        golden=[
            Golden(
                rewards=[1, 0, 1],
                log_ratio=[[0.1], [-0.1], [0.5]],
                advantage=[1.0, 0.0, 1.0],
                grad=[[-1 / 6], [0.415304116], [0.0]],
                why="e^0.5 > 1.2 drops the third's own half; the second gets e^(0.1-0.1)/6 + e^(0.5-0.1)/6",
            ),
            Golden(
                rewards=[1, 0],
                lengths=[1, 2],
                log_ratio=[[0.15], [0.05, -0.15]],
                settings={"clip": "joint"},
                grad=[[0.0], [0.0, 0.0]],
                why="e^(0.15 + 0.1) > 1.2: the pair is dropped though each ratio is inside",
            ),
            Golden(
                rewards=[3, 1],
                lengths=[1, 2],
                log_ratio=[[0.05], [0.05, -0.1]],
                settings={"clip": "joint"},
                advantage=[3.0, 1.0],
                grad=[[-1.0], [1.0, 1.0]],
                why="w_1 w_2 = 1; half of the difference 2",
            ),
        ],
        recommended={"group": 2},
    ),
    base="ppo",
    keeps=(*CLIPS, "kl_coef", "kl_estimator"),
)
