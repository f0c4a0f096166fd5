"""Plain policy gradients that differ in the baseline of a reward: RLOO, ReMax, OPO, GPG."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.advantage.papers.baselines import GreedyBaseline, LengthWeighted
from grouprl.algorithms.advantage_transform.advantage_transform import ValidFraction
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import PolicyGradient
from grouprl.algorithms.regularize.kl import ValueEstimator
from grouprl.core.levels import Alone, Scale
from grouprl.core.numbers import NonNegative
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import ALONE, KL_NEED, kl_in_reward

K1 = "k1 in the reward, as in the paper"


def rloo(base: Method, alone: Alone = "zero") -> Method:
    """Compose RLOO.

    L = -mean_i A_i Σ_t log π(y_t), A_i = R_i - mean of the others; the KL to the reference is part of R (off by
    default, 0.03 in the paper).
    """
    return base.with_parts(advantage=Relative("group", center="leave_one_out", scale="none", alone=alone))


entry(
    "rloo",
    rloo,
    Card(
        title="REINFORCE Leave-One-Out",
        papers=[
            Paper(
                "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
                "2402.14740",
                2024,
            )
        ],
        summary=(
            "Each completion against the mean of the others; the whole completion is one action; no clip, no critic."
        ),
        formula="L = -1/B Σ_i A_i Σ_t log π(y_t),  A_i = R_i - mean_{j≠i} R_j,  R ← R - β Σ_t (log π_old - log π_ref)",
        defaults={
            "alone": ALONE,
            "kl_coef": "off, so that no reference is needed with verified rewards; the paper has 0.03 and 0.1",
            "kl_estimator": K1,
        },
        differs=["The KL in the reward is off by default; the paper has β = 0.03 (TL;DR) or 0.1."],
        reduces=[
            Reduction("reinforce", ["one_group"], other={"baseline": "group"}, scale=None, why="G/(G-1) times"),
            Reduction("dr_grpo", ["on_policy", "one_group"], scale=None, why="G/(G-1) times"),
            Reduction("gpg", ["one_group", "equal_lengths"], scale=None, why="the mean over tokens is one factor"),
        ],
        needs=["at least two completions per prompt", "exactly one update per rollout", KL_NEED],
        source="verl core_algos.compute_rloo_outcome_advantage, TRL paper_index.md",
        golden=[
            Golden(
                rewards=[1, 0, 0, 0],
                lengths=[2, 1, 1, 1],
                advantage=[1.0, -1 / 3, -1 / 3, -1 / 3],
                loss=0.25,
                grad=[[-0.25] * 2, [1 / 12], [1 / 12], [1 / 12]],
                why="the others' means are 0 and 1/3; log-probs are -1: (2 - 1)/4",
            ),
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                fields={"ref_bt": [[-1.5, -1.25], [-1.0]]},
                settings={"kl_coef": 0.4},
                advantage=[0.7, -0.7],
                why="the first completion's KL is 0.5 + 0.25; its reward 1 - 0.3",
            ),
        ],
        notes=["TRL's trainer clips the ratio of whole completions, verl's and OpenRLHF's that of tokens."],
        recommended={"kl_coef": 0.03, "group": 2, "learning_rate": 1e-6, "batch": 512},
    ),
    base="reinforce",
    keeps=("kl_coef", "kl_estimator"),
)


def remax(
    limit: Annotated[float, Field(gt=0)] | None = 5.0,
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0,
    kl_coef: NonNegative = 0.0,
    kl_estimator: ValueEstimator = "k1",
) -> Method:
    """Compose ReMax.

    Token mean of -A log π with A = clip(R - R_greedy, ±5), as in the authors' code; KL in the reward off by default.
    """
    return Method(
        reward_transform=kl_in_reward(kl_coef, kl_estimator),
        advantage=GreedyBaseline(limit=limit, gamma=gamma),
        objective=PolicyGradient(),
        aggregate=TokenMean(),
        greedy_baseline=True,
        on_policy=True,
    )


entry(
    "remax",
    remax,
    Card(
        title="ReMax",
        papers=[
            Paper(
                "ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning Large Language "
                "Models",
                "2310.10505",
                2023,
            )
        ],
        summary=(
            "REINFORCE with the reward of the greedy completion as baseline: one extra completion per "
            "prompt, no critic."
        ),
        formula="L = -1/Σ|y_i| Σ_i Σ_t A_t log π(y_t),  A_t = γ^d clip(R - R_greedy, ±limit) - β·k1_t",
        defaults={
            "limit": "liziniu/ReMax remax_trainer.py: the difference is clipped to ±5",
            "gamma": "1, the code's default; its scripts use 0.99",
            "kl_coef": "off, so that no reference is needed with verified rewards; the scripts use 0.05 to 0.1",
            "kl_estimator": K1,
        },
        differs=[
            "The KL in the reward is off by default.",
            "As in the authors' code, a token carries its own KL, not that of the tokens after it.",
        ],
        needs=["one greedy completion per prompt", "exactly one update per rollout", KL_NEED],
        source="liziniu/ReMax step3_rlhf_finetuning/remax_trainer.py; verl core_algos.py",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                fields={"greedy_reward_b": [0.5, 0.5]},
                advantage=[0.5, -0.5],
                loss=1 / 6,
                grad=[[-1 / 6] * 2, [1 / 6]],
                why="three tokens: (0.5·2 - 0.5·1)/3",
            ),
            Golden(
                rewards=[10],
                lengths=[2],
                fields={"greedy_reward_b": [0.0], "ref_bt": [[-1.5, -1.0]]},
                settings={"gamma": 0.5, "kl_coef": 0.1},
                advantage=[[1.25 - 0.05, 2.5]],
                why="10 is clipped to 5; the last token counts one step: 2.5, the one before 1.25, less its own KL",
            ),
        ],
        recommended={"kl_coef": 0.05, "gamma": 0.99, "top_p": 0.9, "temperature": 1.0},
    ),
)


def opo(alone: Alone = "zero") -> Method:
    """Compose OPO.

    Token mean of -A log π with A = R - Σ l R/Σ l over the group, one update per rollout, as in the paper.
    """
    return Method(
        advantage=LengthWeighted("group", alone=alone),
        objective=PolicyGradient(),
        aggregate=TokenMean(),
        on_policy=True,
    )


entry(
    "opo",
    opo,
    Card(
        title="On-Policy RL with Optimal reward baseline",
        papers=[Paper("On-Policy RL with Optimal Reward Baseline", "2505.23585", 2025)],
        summary="The length-weighted mean reward as baseline, exactly on-policy: no ratio, no clip, no KL, no entropy.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t A_i log π(y_t),  A_i = R_i - Σ_j |y_j| R_j / Σ_j |y_j|",
        defaults={"alone": ALONE + "; the baseline of verl is 0 there"},
        differs=["None known. The code runs PPO's loss with one update, where the ratio is 1: the same gradient."],
        reduces=[
            Reduction(
                "reinforce", ["equal_lengths"], other={"baseline": "group"}, scale=None, why="the plain group mean"
            ),
            Reduction("dr_grpo", ["on_policy", "equal_lengths"], scale=None, why="the plain group mean"),
        ],
        needs=["at least two completions per prompt", "exactly one update per rollout"],
        source="microsoft/LMOps opo/verl/trainer/ppo/core_algos.py; verl docs/algo/opo.md",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 3],
                advantage=[0.75, -0.25],
                loss=0.0,
                grad=[[-0.1875], [0.0625] * 3],
                why="baseline 1·1/4; Σ|y|A = 0; four tokens",
            )
        ],
    ),
)


def gpg(base: Method, scale: Scale = "none", rescale: bool = True) -> Method:
    """Compose GPG.

    Mean over completions of the token mean of -αA log π, A = R - mean_g, α = B/(B - M). The paper's resampling of
    batches with too few valid groups is left out.
    """
    return base.with_parts(
        advantage_transform=(ValidFraction(),) if rescale else (),
        objective=PolicyGradient(),
        on_policy=True,
    )


entry(
    "gpg",
    gpg,
    Card(
        title="Group Policy Gradient",
        papers=[
            Paper("GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning", "2504.02546", 2025)
        ],
        summary="Plain policy gradient with the group's mean as baseline, scaled up for prompts that taught nothing.",
        formula="L = -α/B Σ_i 1/|y_i| Σ_t A_i log π(y_t),  A_i = R_i - mean_g R,  α = B/(B - M)",
        defaults={
            "scale": "none, the paper's F_norm = 1; it also tries the standard deviation",
            "rescale": "the paper's α, M completions in groups of equal rewards",
        },
        differs=[
            "The code divides by (valid share + 1e-5); here α is exact.",
            "No resampling until a share of 0.6 of the groups is valid: α alone makes up for the others.",
        ],
        reduces=[
            Reduction(
                "reinforce",
                ["equal_lengths", "mixed_groups"],
                other={"baseline": "group"},
                scale=None,
                why="no zero-variance group, α = 1; the mean over tokens is a constant factor",
            ),
            Reduction("dr_grpo", ["on_policy", "equal_lengths"], scale=None, why="one factor per batch"),
            Reduction("grpo", ["on_policy"], settings={"rescale": False}, other={"scale": "none"}, why="ratio 1"),
        ],
        needs=["at least two completions per prompt", "exactly one update per rollout"],
        source="AMAP-ML/GPG: R1-V grpo_trainer.py, open-r1 gpg_trainer.py; verl core_algos.py",
        golden=[
            Golden(
                rewards=[1, 0, 1, 1],
                lengths=[2, 1, 1, 1],
                groups=[0, 0, 1, 1],
                advantage=[1.0, -1.0, 0.0, 0.0],
                loss=0.0,
                grad=[[-0.125] * 2, [0.25], [0.0], [0.0]],
                why="α = 4/2 doubles ±0.5; four completions",
            )
        ],
        notes=["verl's α counts completions of nonzero score instead of completions in mixed groups."],
    ),
    base="grpo",
    keeps=("eps", "alone"),
)
