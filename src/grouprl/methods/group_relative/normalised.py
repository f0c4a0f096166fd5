"""Advantages on another scale: a fitted density, a filter of outliers, asymmetry between right and wrong."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage.papers.beta import BetaNormalized, Shape
from grouprl.algorithms.advantage.returns import ReturnsToGo
from grouprl.algorithms.advantage_transform.advantage_transform import Whiten
from grouprl.algorithms.advantage_transform.papers.reweigh import DropOutliers, LongWrong
from grouprl.algorithms.aggregate.aggregate import SequenceMean, SequenceSum
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.papers.outer_clip import PreClipped
from grouprl.algorithms.regularize.kl import Estimator, ValueEstimator
from grouprl.algorithms.regularize.papers.positive import DifficultyKL
from grouprl.core.levels import Alone
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, ClipLow, DualClip, kl_in_reward


def bnpo(
    base: Method,
    alone: Alone,
    clip_high: Positive = 0.28,
    dual_clip: DualClip = 10.0,
    low: float = 0.0,
    high: float = 1.0,
    alpha: Shape | None = None,
    beta: Shape | None = None,
    limit: Positive = 1e6,
    components: tuple[str, ...] = (),
) -> Method:
    """Compose BNPO.

    A = (R - p)/Beta(p; α, β) with the density fitted to the groups of the batch; clipped loss 0.2/0.28, summed over
    tokens and averaged over completions, as in the authors' code.
    """
    return base.with_parts(
        advantage=BetaNormalized(
            low=low, high=high, alpha=alpha, beta=beta, limit=limit, components=components, alone=alone
        ),
        aggregate=SequenceSum(),
    )


entry(
    "bnpo",
    bnpo,
    Card(
        title="Beta Normalization Policy Optimization",
        papers=[Paper("BNPO: Beta Normalization Policy Optimization", "2506.02864", 2025)],
        summary="Divide by a Beta density of the pass rate, fitted to the batch, instead of a standard deviation.",
        formula=(
            "L = -1/B Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε_low, 1+ε_high) A_i),  A_i = (R_i - p_g)/Beta(p_g; α, β),  "
            "p_g = mean_g R,  α = max(1 + a/3, 1),  β = max(1 + b/3, 1),  a, b the moments' Beta of p over the groups"
        ),
        defaults={
            "clip_low": "changyi7231/BNPO run.sh: 0.2",
            "clip_high": "changyi7231/BNPO run.sh: 0.28",
            "dual_clip": "changyi7231/BNPO run.sh: 10",
            "low": "rewards are 0 or 1 in the paper",
            "high": "rewards are 0 or 1 in the paper",
            "alpha": "none: fitted to the batch",
            "beta": "none: fitted to the batch",
            "limit": "changyi7231/BNPO bnpo_ray_trainer.py: 1/f at most 1e6",
            "components": "none: the reward as a whole; named components are judged one by one and averaged",
        },
        differs=[
            "Where all groups have the same pass rate the code divides by zero; here nothing is scaled then.",
            "A group whose mean reward is 0 or 1 (or outside) is not scaled; its advantages are 0 anyway.",
        ],
        reduces=[
            Reduction(
                "dr_grpo",
                ["on_policy"],
                settings={"alpha": 1.0, "beta": 1.0},
                other={"length": 1},
                why="Beta(1, 1) is 1 everywhere; Lmax = 1 leaves the sum over tokens",
            ),
            Reduction(
                "grpo",
                ["on_policy", "equal_lengths", "binary_rewards"],
                settings={"alpha": 1.5, "beta": 1.5},
                other={"scale": "population_std", "eps": 0.0},
                scale=None,
                why="Beta(p; 3/2, 3/2) = 8/π·sqrt(p(1-p)), for rewards 0 and 1 their standard deviation",
            ),
        ],
        needs=["at least two completions per prompt", "rewards in [low, high]"],
        source="changyi7231/BNPO recipe/bnpo/src/bnpo_ray_trainer.py and run.sh",
        golden=[
            Golden(
                rewards=[1, 0, 1, 0, 0, 0],
                lengths=[1, 2, 1, 1, 1, 1],
                groups=[0, 0, 1, 1, 1, 1],
                advantage=[0.34085217, -0.34085217, 0.51854599, -0.17284866, -0.17284866, -0.17284866],
                grad=[[-0.0568087], [0.0568087] * 2, [-0.08642433], [0.02880811], [0.02880811], [0.02880811]],
                why="p = 1/2, 1/4: mean 0.375, variance 1/32, a = 2.4375, b = 4.0625, α = 1.8125, β = 2.3541667; the "
                "density is 1.4669116 and 1.4463519; six completions",
            ),
            Golden(
                rewards=[1, 0, 0, 0],
                settings={"alpha": 1.5, "beta": 1.5},
                advantage=[0.68017476, -0.22672492, -0.22672492, -0.22672492],
                loss=0.0,
                grad=[[-0.17004369], [0.05668123], [0.05668123], [0.05668123]],
                why="8/π·sqrt(3/16) = 1.1026578",
            ),
        ],
        notes=["TRL's loss_type 'bnpo' is another thing: a token mean over the local batch, without any Beta."],
        recommended={"group": 16, "prompts": 32, "learning_rate": 1e-6},
    ),
    base="grpo",
    keeps=("clip_low",),
)


def stable_reinforce(
    clip_low: ClipLow = 0.2,
    clip_high: Positive = 0.2,
    bound: Annotated[float, Field(gt=1)] = 1000.0,
    sigma: Positive = 3.0,
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0,
    eps: NonNegative = 1e-8,
    kl_coef: NonNegative = 0.0,
    kl_estimator: ValueEstimator = "k1",
) -> Method:
    """Compose StableReinforce.

    REINFORCE++ averaged completion by completion, the log-ratio clamped to ±log 1000 before PPO's clip, advantages
    beyond three standard deviations dropped; the KL in the reward is off by default.
    """
    return Method(
        reward_transform=kl_in_reward(kl_coef, kl_estimator),
        advantage=ReturnsToGo(gamma=gamma),
        advantage_transform=(
            Whiten(key="batch", count="token", variance="population", eps=eps),
            DropOutliers(sigma=sigma),
        ),
        objective=PreClipped(clip_low=clip_low, clip_high=clip_high, bound=bound),
        aggregate=SequenceMean(),
    )


entry(
    "stable_reinforce",
    stable_reinforce,
    Card(
        title="StableReinforce",
        papers=[
            Paper(
                "R1-Reward: Training Multimodal Reward Model Through Stable Reinforcement Learning", "2505.02835", 2025
            )
        ],
        summary="REINFORCE++ with a ratio that is bounded before it is exponentiated and advantages within 3 sigma.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t),  ρ = exp(clip(log π/π_old, ±log bound)),  "
            "A = Â·[|Â| ≤ sigma],  Â = (G - mean_B G)/sqrt(var_B G + eps)"
        ),
        defaults={
            "clip_low": "yfzhang114/r1_reward: 0.2",
            "clip_high": "yfzhang114/r1_reward: 0.2",
            "bound": "yfzhang114/r1_reward openrlhf/models/loss.py: ratios in [1e-3, 1e3]",
            "sigma": "the paper: 3",
            "gamma": "1, as in REINFORCE++ for language models",
            "eps": "OpenRLHF: 1e-8 on the variance",
            "kl_coef": "off, so that no reference is needed; the script has 1e-3",
            "kl_estimator": "k1 in the reward, as in REINFORCE++",
        },
        differs=[
            "The KL in the reward is off by default; the script has 1e-3.",
            "The released code compares the standardised value with the raw mean ± 3 and drops |A| > 10; here |A| > 3.",
            "The reward (format, result, consistency) belongs to the task.",
        ],
        reduces=[
            Reduction(
                "reinforce_pp",
                ["equal_lengths"],
                settings={"sigma": 1e9, "bound": 1e8},
                why="no bound is reached: REINFORCE++; equal lengths make the two means agree",
            ),
        ],
        needs=["a reference model when kl_coef is above 0"],
        source="yfzhang114/r1_reward openrlhf/models/loss.py, trainer/ppo_utils/replay_buffer.py, scripts/train.sh",
        golden=[
            Golden(
                rewards=[1, *[0] * 11],
                groups=list(range(12)),
                advantage=[0.0, *[-0.30151132] * 11],
                loss=0.27638538,
                grad=[[0.0], *[[0.02512594]] * 11],
                why="mean 1/12: the first is at sqrt(11) = 3.3166 > 3, the others at -0.3015113; twelve completions",
            ),
            Golden(
                rewards=[1, 0],
                log_ratio=[[-50.0], [50.0]],
                settings={"eps": 0.0},
                loss=499.9995,
                grad=[[0.0], [0.0]],
                why="A = ±1: the ratios are held at 1e-3 and 1e3: (-0.001 + 1000)/2",
            ),
        ],
        recommended={"group": 1, "batch": 256, "learning_rate": 3e-7, "kl_coef": 1e-3},
    ),
)


def apo_asymmetric(
    base: Method,
    kl_estimator: Estimator,
    kl_coef: NonNegative = 1e-3,
    kl_rate: Positive = math.e,
    length_base: Annotated[float, Field(gt=1)] = 1.00001,
    eps: NonNegative = 1e-9,
) -> Method:
    """Compose the asymmetric policy optimisation of View-R1.

    GRPO with a KL weighted by difficulty on completions of positive advantage, and wrong completions weighted by how
    much longer than the right ones they are; numbers of the authors' code.
    """
    fading = (DifficultyKL(coef=kl_coef, estimator=kl_estimator, rate=kl_rate),) if kl_coef > 0 else ()
    return base.with_parts(
        advantage_transform=(LongWrong(base=length_base),),
        regularize=fading,
    )


entry(
    "apo_asymmetric",
    apo_asymmetric,
    Card(
        title="Asymmetric Policy Optimization",
        papers=[
            Paper("APO: Enhancing Reasoning Ability of MLLMs via Asymmetric Policy Optimization", "2506.21655", 2025)
        ],
        summary="GRPO with a KL that fades on correct completions to hard prompts and a push against long wrong ones.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i) + β·w_i·k3_t,  w = 1 - exp(-e·(1-d)) if "
            "A > 0 and 0 < d < 1 else 1,  A ← A·(2 - base^(-Δ)) if wrong and Δ = |y_i| - mean_right|y| > 0,  d = share "
            "of wrong completions"
        ),
        defaults={
            "clip_low": "View-R1 train_grpo.sh: 0.2",
            "clip_high": "View-R1 train_grpo.sh: 0.2",
            "kl_coef": "View-R1 train_grpo.sh: 1e-3; a fading KL is half of the method, so it is on",
            "kl_estimator": "View-R1 ppo_actor.py: k3",
            "kl_rate": "View-R1 experience_maker.py: e = 2.718",
            "length_base": "View-R1 experience_maker.py: 1.00001, so that 1000 tokens too many give a factor of 1.01",
            "eps": "View-R1 experience_maker.py: 1e-9",
        },
        differs=[
            "Correct completions are those verified right; the code reads them off the integer part of the reward.",
            "The average over completions is ours; the code's own was not seen.",
        ],
        reduces=[
            Reduction(
                "grpo",
                settings={"length_base": 1.0 + 1e-12, "kl_coef": 0.0},
                other={"eps": 1e-9},
                why="no KL, no weight on length",
            ),
        ],
        needs=["at least two completions per prompt", "a reference model when kl_coef is above 0"],
        confidence="partly",
        uncertain="The base of the length factor in the paper (the code's is tiny), and the aggregation.",
        source="Indolent-Kawhi/View-R1 experience_maker.py, ppo_actor.py, train_grpo.sh",
        golden=[
            Golden(
                rewards=[1, 0, 0],
                lengths=[1, 3, 1],
                fields={"ref_bt": [[-1.5], [-1.0, -1.0, -1.0], [-1.5]]},
                settings={"kl_coef": 0.1, "length_base": 2.0},
                advantage=[1.15470054, -1.01036297, -0.57735027],
                loss=0.15000464,
                grad=[[-0.37708456], [0.11226255] * 3, [0.20556573]],
                why="Δ = 2: 1 + 3/4; d = 2/3: w = 1 - exp(-e/3) = 0.5959004; k3 = 0.1065307, its slope 0.3934693",
            )
        ],
        recommended={"group": 8, "learning_rate": 1e-6, "kl_coef": 1e-3},
    ),
    base="grpo",
    keeps=(*CLIPS, "scale", "alone"),
)
