"""REINFORCE, and REINFORCE++ which borrows PPO's clip and normalises over the whole batch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage.advantage import Advantage, RawReward, Relative
from grouprl.algorithms.advantage.returns import ReturnsToGo
from grouprl.algorithms.advantage_transform.advantage_transform import Whiten
from grouprl.algorithms.aggregate.aggregate import SequenceSum, TokenMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import PolicyGradient
from grouprl.algorithms.regularize.kl import Estimator, ValueEstimator
from grouprl.algorithms.reward_transform.reward_transform import RewardClip
from grouprl.core.levels import Alone
from grouprl.core.numbers import NonNegative
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, KL_NEED, PPO_CLIP, kl_in_reward

Baseline = Literal["none", "batch", "group"]
Variance = Literal["sample", "population"]
REINFORCE_PP = Paper(
    "REINFORCE++: A Simple and Efficient Approach for Aligning Large Language Models", "2501.03262", 2025
)
VARIANCE = "population (n), as OpenRLHF, the authors' code; verl divides by n-1"
WHITEN_EPS = "OpenRLHF and verl: 1e-8 on the variance"


def reinforce(
    baseline: Baseline = "none",
    kl_coef: NonNegative = 0.0,
    kl_estimator: ValueEstimator = "k1",
) -> Method:
    """Compose REINFORCE.

    L = -mean_i Σ_t (R_i - b) log π(y_t) with b zero, the batch's mean or the group's mean. No moving average.
    """
    prepared: dict[str, Advantage] = {
        "none": RawReward(),
        "batch": Relative("batch", center="mean", scale="none"),
        "group": Relative("group", center="mean", scale="none"),
    }
    return Method(
        reward_transform=kl_in_reward(kl_coef, kl_estimator),
        advantage=prepared[baseline],
        objective=PolicyGradient(),
        aggregate=SequenceSum(),
        on_policy=True,
    )


entry(
    "reinforce",
    reinforce,
    Card(
        title="REINFORCE",
        papers=[
            Paper(
                "Simple statistical gradient-following algorithms for connectionist reinforcement learning (Williams)",
                year=1992,
            )
        ],
        summary="Push each completion's log-prob by its reward; nothing else.",
        formula="L = -1/B Σ_i Σ_t (R_i - b) log π(y_t)",
        defaults={
            "baseline": "none: the plain estimator; Williams allows any b that does not depend on the completion",
            "kl_coef": "off: the paper predates reference models",
            "kl_estimator": "k1 is right in a reward",
        },
        differs=[
            "A moving average of past rewards as baseline needs memory and is not offered; baseline: batch takes the "
            "mean reward of the batch, baseline: group that of the prompt."
        ],
        reduces=[
            Reduction("raft", ["binary_rewards", "equal_lengths"], scale=None, why="rewards 0 and 1: A = R in both"),
            Reduction("rloo", ["one_group"], settings={"baseline": "group"}, scale=None, why="(G-1)/G times rloo's"),
            Reduction("dr_grpo", ["on_policy"], settings={"baseline": "group"}, other={"length": 1}, why="no ratio"),
        ],
        needs=["exactly one update per rollout", KL_NEED],
        source="the formula is textbook material",
        golden=[
            Golden(
                rewards=[1, 0, 2],
                lengths=[2, 1, 1],
                groups=[0, 1, 2],
                advantage=[1.0, 0.0, 2.0],
                loss=4 / 3,
                grad=[[-1 / 3] * 2, [0.0], [-2 / 3]],
                why="log-probs are -1: (1·2 + 2·1)/3",
            ),
            Golden(
                rewards=[1, 0, 2],
                lengths=[2, 1, 1],
                groups=[0, 1, 2],
                settings={"baseline": "batch"},
                advantage=[0.0, -1.0, 1.0],
                loss=0.0,
                grad=[[0.0] * 2, [1 / 3], [-1 / 3]],
                why="the mean reward is 1",
            ),
        ],
    ),
)


def _reward_clip(bounds: float | tuple[float, float]) -> RewardClip:
    return RewardClip(limit=bounds) if isinstance(bounds, int | float) else RewardClip(low=bounds[0], limit=bounds[1])


def reinforce_pp(
    base: Method,
    gamma: float,
    reward_clip: Annotated[float, Field(gt=0)] | tuple[float, float] | None = None,
    count: Literal["token", "sequence"] = "token",
    variance: Variance = "population",
    eps: NonNegative = 1e-8,
) -> Method:
    """Compose REINFORCE++.

    Token mean of PPO's clipped loss with A the returns to go, whitened over all tokens of the batch; KL (k1) in the
    reward, off by default.
    """
    clip = () if reward_clip is None else (_reward_clip(reward_clip),)
    return base.with_parts(
        reward_transform=(*clip, *base.reward_transform),
        advantage=ReturnsToGo(gamma=gamma),
        advantage_transform=(Whiten(key="batch", count=count, variance=variance, eps=eps),),
        critic=None,
    )


entry(
    "reinforce_pp",
    reinforce_pp,
    Card(
        title="REINFORCE++",
        papers=[REINFORCE_PP],
        summary="PPO without critic and without groups: returns to go, whitened over all tokens of the batch.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t),  A = (G - mean_B G) / sqrt(var_B G + eps),  "
            "G_t = Σ_{k≥t} γ^(k-t) r_k,  r_t = R·[t last] - β·k1_t"
        ),
        defaults={
            "gamma": "1, as for language models everywhere",
            "reward_clip": "off; OpenRLHF offers [-10, 10]; one number c is [-c, c], two are low and high",
            "count": "token, as in both codes: long completions weigh more in mean and variance",
            "variance": VARIANCE,
            "eps": WHITEN_EPS,
            "kl_coef": "off, so that no reference is needed with verified rewards; OpenRLHF's default is 0.01",
            "kl_estimator": "k1 in the reward, as in the paper",
        },
        differs=[
            "The KL in the reward is off by default (kl_coef=0.01 as OpenRLHF).",
            "eps is added to the variance as in verl; OpenRLHF takes the larger of the two.",
        ],
        reduces=[
            Reduction(
                "reinforce_pp_baseline",
                ["one_group"],
                why="with one prompt the group's mean is a constant, which whitening removes",
            ),
            Reduction(
                "reinforce",
                ["on_policy", "equal_lengths"],
                other={"baseline": "batch"},
                scale=None,
                why="whitening subtracts the batch's mean and divides by one number",
            ),
        ],
        needs=[KL_NEED],
        source="OpenRLHF trainer/ppo_utils/experience_maker.py, models/loss.py; verl core_algos.py",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 3],
                groups=[0, 1],
                advantage=[1.73205076, -0.57735025],
                loss=0.0,
                grad=[[-0.43301269], [0.14433756] * 3],
                why="four tokens with returns 1, 0, 0, 0: mean 0.25, variance 0.1875",
            ),
            Golden(
                rewards=[1],
                lengths=[2],
                fields={"ref_bt": [[-1.5, -1.2]]},
                settings={"kl_coef": 0.1},
                advantage=[[-0.999992, 0.999992]],
                why="rewards -0.05 and 0.98, returns 0.93 and 0.98: 0.025 / sqrt(0.000625 + 1e-8)",
            ),
        ],
    ),
    base="ppo",
    keeps=(*CLIPS, "dual_clip", "kl_coef", "kl_estimator"),
)


def reinforce_pp_baseline(
    base: Method,
    alone: Alone,
    count: Literal["token", "sequence"] = "token",
    variance: Variance = "population",
    eps: NonNegative = 1e-8,
    kl_estimator: Estimator = "k2",
) -> Method:
    """Compose REINFORCE++-baseline.

    Token mean of PPO's clipped loss with A = whiten_batch(R - mean_group R); KL (k2) as a loss, off by default.
    """
    return base.with_parts(
        advantage=Relative("group", center="mean", scale="none", alone=alone),
        advantage_transform=(Whiten(key="batch", count=count, variance=variance, eps=eps),),
        aggregate=TokenMean(),
    )


entry(
    "reinforce_pp_baseline",
    reinforce_pp_baseline,
    Card(
        title="REINFORCE++-baseline",
        papers=[REINFORCE_PP],
        summary="The group's mean as baseline, then one whitening over all tokens of the batch.",
        formula=("L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i) + β·KL,  A = whiten_B(R_i - mean_g R)"),
        defaults={
            **PPO_CLIP,
            "count": "token, as in both codes: long completions weigh more in mean and variance",
            "variance": VARIANCE,
            "eps": WHITEN_EPS,
            "kl_coef": "off, so that no reference is needed with verified rewards",
            "kl_estimator": "k2 as a loss, the authors' recommended set-up",
        },
        differs=["The KL loss (k2) is off by default.", "eps is added to the variance; OpenRLHF takes the larger."],
        reduces=[
            Reduction(
                "grpo",
                ["one_group", "equal_lengths"],
                other={"scale": "population_std"},
                why="one prompt, equal lengths: whitening over tokens is GRPO's division",
            ),
            Reduction("reinforce_pp", ["one_group"], why="whitening removes any constant baseline"),
        ],
        needs=["at least two completions per prompt", KL_NEED],
        source="OpenRLHF trainer/ppo_utils/experience_maker.py; verl core_algos.py; ms-swift REINFORCEPP docs",
        golden=[
            Golden(
                rewards=[1, 0, 1, 1],
                groups=[0, 0, 1, 1],
                advantage=[1.41421351, -1.41421351, 0.0, 0.0],
                loss=0.0,
                grad=[[-0.35355338], [0.35355338], [0.0], [0.0]],
                why="centred rewards ±0.5, 0, 0: variance 0.125",
            )
        ],
        notes=["ms-swift takes the spread of centred rewards over completions (count: sequence)."],
    ),
    base="grpo",
    keeps=(*CLIPS, "dual_clip", "kl_coef"),
)
