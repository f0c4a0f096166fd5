"""Rewards that depend on length: among correct completions the short ones earn more."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage_transform.papers.reweigh import DifficultyWeight
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.filter.filter import MixedGroups
from grouprl.algorithms.method import Method
from grouprl.algorithms.regularize.regularize import EntropyBonus
from grouprl.algorithms.reward_transform.papers.length_reward import (
    CosineLength,
    LengthWhenSolved,
    MinMaxLength,
    RightLengthScore,
    ShortestRight,
)
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, PPO_CLIP

TWO = "at least two completions per prompt"


def grpo_lead(
    base: Method,
    alpha: NonNegative = 0.05,
    wrong: float = -1.0,
    free_length: Annotated[int, Field(ge=0)] = 0,
    weight_low: NonNegative = 0.4,
    weight_high: Positive = 1.5,
    weight_middle: float = 0.75,
    weight_slope: Positive = 10.0,
    filter_dead: bool = True,
) -> Method:
    """Compose GRPO-LEAD.

    Correct completions get R·exp(-0.05 z), wrong ones -1; group advantages are weighted by difficulty; token mean of
    PPO's clip on mixed groups.
    """
    return base.with_parts(
        reward_transform=(RightLengthScore(alpha=alpha, wrong=wrong, free_length=free_length),),
        filter=(MixedGroups(),) if filter_dead else (),
        advantage_transform=(
            DifficultyWeight(low=weight_low, high=weight_high, middle=weight_middle, slope=weight_slope),
        ),
        aggregate=TokenMean(),
    )


entry(
    "grpo_lead",
    grpo_lead,
    Card(
        title="GRPO-LEAD",
        papers=[
            Paper(
                "GRPO-LEAD: A Difficulty-Aware Reinforcement Learning Approach for Concise Mathematical Reasoning in "
                "Language Models",
                "2504.09696",
                2025,
            )
        ],
        summary="Short correct completions earn more, wrong ones cost, and hard prompts weigh more.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  A = Â·w(ρ) if Â > 0 else Â·w(1-ρ),  "
            "w(x) = a + (b-a)/(1 + exp(k(x-x0))),  R ← R·exp(-α z_i) if right else wrong,  "
            "z = (|y| - mean_right)/(std_right + 1e-6),  ρ = share of correct completions"
        ),
        defaults={
            "alpha": "aeroplanepaper/GRPO-LEAD: 0.05",
            "wrong": "the paper: -1",
            "free_length": "0: every group is shaped, as in the paper; the release leaves groups up to 4000 tokens",
            "weight_low": "aeroplanepaper/GRPO-LEAD: a = 0.4",
            "weight_high": "aeroplanepaper/GRPO-LEAD: b = 1.5",
            "weight_middle": "aeroplanepaper/GRPO-LEAD: x0 = 0.75",
            "weight_slope": "aeroplanepaper/GRPO-LEAD: k = 10",
            **PPO_CLIP,
            "filter_dead": "the release rejects groups that are all right or all wrong",
        },
        differs=[
            "The release gives 0 instead of -1 to completions without a final answer; a batch does not mark them.",
        ],
        reduces=[
            Reduction(
                "dapo",
                ["mixed_groups"],
                settings={"alpha": 0.0, "wrong": 0.0, "weight_low": 1.0, "weight_high": 1.0, "clip_high": 0.28},
                why="no shaping and every weight 1",
            ),
            Reduction(
                "grpo",
                ["mixed_groups", "equal_lengths"],
                settings={"alpha": 0.0, "wrong": 0.0, "weight_low": 1.0, "weight_high": 1.0},
                why="no shaping and every weight 1",
            ),
        ],
        needs=[TWO, "rewards of 0 or 1 (or of which correct completions get a positive one)"],
        confidence="partly",
        uncertain="Clip and aggregation of the release, which rewards and advantages do not depend on.",
        source="aeroplanepaper/GRPO-LEAD core_algos.py, main_ppo.py",
        golden=[
            Golden(
                rewards=[1, 1, 1, 0],
                lengths=[1, 2, 3, 2],
                advantage=[0.52245989, 0.47381326, 0.42753916, -2.23709071],
                grad=[[-0.06530749], [-0.05922666] * 2, [-0.0534424] * 3, [0.27963634] * 2],
                why="z = -1, 0, 1: rewards 1.0512711, 1, 0.9512295, -1; w(3/4) = 0.95, w(1/4) = 1.49264; eight tokens",
            )
        ],
        recommended={"group": 8, "temperature": 0.8},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)


def conciser(
    base: Method,
    length_coef: NonNegative = 1.0,
    clip_high: Positive = 0.28,
    entropy_coef: NonNegative = 0.0,
) -> Method:
    """Compose the second stage of ConciseR.

    GRPO with DAPO's clip and token mean; completions of groups that are all right also get 1 - |y|/Lmax. The form of
    that reward is our interpretation, its condition is the paper's.
    """
    return base.with_parts(
        reward_transform=(LengthWhenSolved(coef=length_coef),),
        aggregate=TokenMean(),
        regularize=(EntropyBonus(coef=entropy_coef),) if entropy_coef > 0 else (),
    )


entry(
    "conciser",
    conciser,
    Card(
        title="ConciseR, second stage (length-aware GRPO)",
        papers=[Paper("Walk Before You Run! Concise LLM Reasoning via Reinforcement Learning", "2505.21178", 2025)],
        summary="Once every completion of a prompt is right, the shorter ones earn more; until then length is free.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε_low, 1+ε_high) A_i) - c_H·H,  "
            "R ← R + c·(1 - |y|/Lmax) where all of the group are right,  A_i = (R_i - mean_g R)/(std_g R + eps)"
        ),
        defaults={
            "length_coef": "1, our choice: with the group's spread divided out its size hardly matters",
            "clip_low": "as in DAPO, whose clip-higher the first stage has",
            "clip_high": "as in DAPO, whose clip-higher the first stage has",
            "entropy_coef": "off; the first stage has an entropy bonus of a size that we do not know",
        },
        differs=[
            "The second stage only. The first (clip-higher, dynamic sampling, entropy bonus) is `dapo`; start this one "
            "from its checkpoint.",
            "No dynamic sampling here: it would throw away the groups from which length is learnt.",
        ],
        reduces=[
            Reduction(
                "dapo",
                ["mixed_groups"],
                why="a group with a wrong completion knows no length; token mean, the same clip",
            ),
        ],
        needs=[TWO, "the longest allowed completion"],
        confidence="abstract-only",
        uncertain="The formula and weight of the length reward, the aggregation; the gate is certain.",
        source="the paper's abstract and public notes on it; its repository holds no training code",
        golden=[
            Golden(
                rewards=[1, 1, 1],
                lengths=[1, 2, 4],
                fields={"max_length": 10},
                advantage=[0.87286585, 0.21821646, -1.09108231],
                grad=[[-0.12469512], [-0.03117378] * 2, [0.1558689] * 4],
                why="rewards 1.9, 1.8, 1.6; seven tokens",
            ),
            Golden(
                rewards=[1, 1, 0],
                lengths=[1, 3, 2],
                fields={"max_length": 10},
                settings={"scale": "none"},
                advantage=[1 / 3, 1 / 3, -2 / 3],
                grad=[[-1 / 18], [-1 / 18] * 3, [1 / 9] * 2],
                why="one wrong completion: length does not matter; six tokens",
            ),
        ],
    ),
    base="grpo",
    keeps=(*GROUP, "clip_low"),
)


def self_rewarded_efficiency(base: Method, length_coef: NonNegative = 0.5) -> Method:
    """Compose GRPO with a bonus relative to the shortest correct completion of the group; the formula is our
    interpretation.
    """
    return base.with_parts(
        reward_transform=(ShortestRight(coef=length_coef),),
    )


entry(
    "self_rewarded_efficiency",
    self_rewarded_efficiency,
    Card(
        title="Self-rewarded efficiency",
        papers=[
            Paper(
                "Exploring and Exploiting the Inherent Efficiency within Large Reasoning Models for Self-Guided "
                "Efficiency Enhancement",
                "2506.15647",
                2025,
            )
        ],
        summary="Correct completions earn a bonus for being as short as the model's own shortest correct completion.",
        formula=("L = GRPO's with R ← R + c·[right]·min_right |y| / |y_i|,  A_i = (R_i - mean_g R)/(std_g R + eps)"),
        defaults={
            "length_coef": "0.5, our choice: a correct completion always beats a wrong one",
            **PPO_CLIP,
        },
        differs=["Reinforcement learning only: the paper's steering of hidden states acts at inference."],
        reduces=[Reduction("grpo", settings={"length_coef": 0.0}, why="no bonus")],
        needs=[TWO],
        confidence="abstract-only",
        uncertain=(
            "The formula: only that correct completions are compared with the model's own shortest ones is known."
        ),
        source="the paper's abstract",
        golden=[
            Golden(
                rewards=[1, 1, 0],
                lengths=[1, 2, 1],
                advantage=[0.72586528, 0.41478016, -1.14064544],
                grad=[[-0.24195509], [-0.06913003] * 2, [0.38021515]],
                why="rewards 1.5, 1.25, 0: mean 0.9166667, std 0.8036376; three completions",
            )
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)


def open_rs(base: Method, length_reward: Literal["cosine", "kimi"] = "cosine") -> Method:
    """Compose GRPO with the cosine length reward of Open-RS, or with Kimi k1.5's."""
    return base.with_parts(
        reward_transform=(CosineLength() if length_reward == "cosine" else MinMaxLength(),),
    )


entry(
    "open_rs",
    open_rs,
    Card(
        title="Open-RS: GRPO with a length reward",
        papers=[
            Paper(
                "Reinforcement Learning for Reasoning in Small LLMs: What Works and What Doesn't", "2503.16219", 2025
            ),
            Paper("Kimi k1.5: Scaling Reinforcement Learning with LLMs", "2501.12599", 2025),
        ],
        summary="Plain GRPO; the reward falls with length along a cosine, or by rank of length in the group (Kimi).",
        formula=(
            "L = GRPO's with R ← long + ½(short - long)(1 + cos(π|y|/Lmax)): 1 to ½ times R if right, -1 to -½ if "
            "wrong; or R ← R + λ (wrong: min(0, λ)), λ = ½ - (|y| - min_g)/(max_g - min_g)"
        ),
        defaults={
            "length_reward": "the cosine, which the paper trains with; its code also holds Kimi's",
            **PPO_CLIP,
        },
        differs=[
            "Length in tokens over the run's longest completion; the code counts characters over 1000, and its cosine "
            "rises again beyond that.",
            "The format reward belongs to the task.",
        ],
        reduces=[
            Reduction("grpo", ["equal_lengths", "mixed_groups"], why="rewards 0 and 1 become two other numbers"),
        ],
        needs=[TWO, "the longest allowed completion (cosine)"],
        source="knoveleng/open-rs recipes/grpo.yaml, src/open_r1/rewards.py",
        golden=[
            Golden(
                rewards=[1, 0, 0],
                lengths=[2, 4, 1],
                fields={"max_length": 4},
                advantage=[1.11954406, -0.31489753, -0.80464653],
                grad=[[-0.18659068] * 2, [0.02624146] * 4, [0.26821551]],
                why="rewards 0.75, -0.5 and -0.5 - 0.5·0.8535534; three completions",
            ),
            Golden(
                rewards=[1, 1, 0],
                lengths=[1, 3, 2],
                fields={"max_length": 4},
                settings={"length_reward": "kimi"},
                advantage=[1.09108802, -0.2182176, -0.87287042],
                why="λ = ½, -½, 0: rewards 1.5, 0.5, 0",
            ),
        ],
        recommended={"group": 6, "learning_rate": 1e-6, "steps": 500, "temperature": 0.7},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)
