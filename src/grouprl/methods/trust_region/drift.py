"""Methods that stay near the old policy by a penalty on the distance, with or without a clip: CPGD, MDPO."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.advantage.returns import GAE
from grouprl.algorithms.advantage_transform.advantage_transform import ValidFraction, Whiten
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.critic.critic import ValueLoss
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.off_policy import RegionGradient
from grouprl.algorithms.objective.stop_gradient import Capped
from grouprl.algorithms.regularize.papers.policy_drift import PolicyDrift
from grouprl.algorithms.regularize.regularize import KLLoss
from grouprl.core.levels import Alone, Scale
from grouprl.core.numbers import NonNegative, Positive, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, EPS, ClipLow

SEVERAL = "several updates per rollout, or nothing is clipped or held (batch.minibatches or batch.epochs of 2 or more)"


def cpgd(
    base: Method,
    clip_low: ClipLow,
    clip_high: Positive,
    eps: NonNegative,
    alone: Alone,
    drift_coef: NonNegative = 1e-3,
    drift_cap: Annotated[float, Field(gt=0)] | None = 2.0,
    weighting: Literal["std", "clip_filter", "none"] = "std",
) -> Method:
    """Compose CPGD.

    Token mean of -A·log π for tokens that have not moved beyond [1-ε, 1+ε] in the direction of A, plus the drift
    α·min(ρ - 1, c)·log π with a detached weight.
    """
    scale: Scale = "sample_std" if weighting == "std" else "none"
    return base.with_parts(
        advantage=Relative("group", center="mean", scale=scale, eps=eps, alone=alone),
        advantage_transform=(ValidFraction(limit=3.0),) if weighting == "clip_filter" else (),
        objective=RegionGradient(region="one_side", clip_low=clip_low, clip_high=clip_high),
        aggregate=TokenMean(),
        regularize=(PolicyDrift(coef=drift_coef, cap=drift_cap),) if drift_coef > 0 else (),
    )


entry(
    "cpgd",
    cpgd,
    Card(
        title="Clipped Policy Gradient Optimization with Policy Drift",
        papers=[Paper("CPGD: Toward Stable Rule-based Reinforcement Learning for Language Models", "2505.12504", 2025)],
        summary="Policy gradient on the log-ratio, clipped, so that no ratio can blow up; a drift term pulls back.",
        formula=(
            "L = 1/Σ|y_i| Σ_i Σ_t [-min(A_i·log ρ_t, A_i·clip(log ρ_t, log(1-ε), log(1+ε))) + "
            "α·sg[min(ρ_t - 1, c)]·log π(y_t)],  A_i = ω_g (R_i - mean_g R)"
        ),
        defaults={
            "clip_low": "siiRL and MM-EUREKA: 0.2",
            "clip_high": "siiRL and MM-EUREKA: 0.2",
            "drift_coef": "siiRL: 1e-3 (LightRFT's README: 0.01)",
            "drift_cap": "siiRL: 2.0 (MM-EUREKA: 0.2 to 0.5)",
            "weighting": "siiRL and LightRFT: STD_weight; their other two are clip_filter_like_weight and naive (none)",
            "eps": EPS + "; for weighting std",
        },
        differs=[
            "A clipped token's constant is left out: the gradient is the same, the loss value is not.",
            "'clip_filter' counts completions where the code counts groups, the same for groups of equal size.",
        ],
        reduces=[
            Reduction(
                "rec",
                settings={"drift_coef": 0.0, "weighting": "none"},
                why="the clip of the log-ratio leaves out REC's one side",
            ),
            Reduction(
                "dr_grpo",
                ["on_policy", "equal_lengths"],
                settings={"weighting": "none"},
                scale=None,
                why="every ratio is 1, so no drift",
            ),
            Reduction("grpo", ["on_policy", "equal_lengths"], why="every ratio is 1, so no drift"),
        ],
        needs=["at least two completions per prompt", SEVERAL],
        confidence="partly",
        uncertain="Which weighting ω the paper's own runs have; read in two peers' code, not on the authors' branch.",
        source="sii-research/siiRL core_algos.py and dp_actor.py; opendilab/LightRFT; MM-EUREKA README",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 2],
                log_ratio=[[0.3], [-0.5, 0.1]],
                settings={"drift_coef": 0.3, "weighting": "none"},
                advantage=[0.5, -0.5],
                grad=[[0.034985881], [-0.039346934, 0.177183758]],
                why="clipped tokens keep the drift 0.3·(ρ - 1)/3 alone: e^0.3 - 1 = 0.34986, e^-0.5 - 1 = -0.39347; "
                "the third has (0.5 + 0.3·0.10517)/3",
            ),
            Golden(
                rewards=[0, 1],
                log_ratio=[[4.60517019], [0.0]],
                settings={"drift_coef": 0.1, "weighting": "none"},
                grad=[[0.35], [-0.25]],
                why="ρ = 100 with A < 0: weight 0.5/2 (PPO: 50/2), and the drift's 99 is capped at 2: 0.1·2/2",
            ),
            Golden(
                rewards=[1, 0, 1, 1],
                groups=[0, 0, 1, 1],
                settings={"weighting": "clip_filter"},
                advantage=[1.0, -1.0, 0.0, 0.0],
                why="half of the completions carry a signal: ω = 2",
            ),
            Golden(
                rewards=[1, 0],
                advantage=[0.70710578, -0.70710578],
                grad=[[-0.35355289], [0.35355289]],
                why="0.5/0.7071078; every ratio is 1",
            ),
        ],
        recommended={"group": 8, "learning_rate": 1e-6},
    ),
    base="grpo",
    keeps=CLIPS,
)


def mdpo(
    step_size: Positive = 1.0,
    gamma: Share = 1.0,
    lam: Share = 0.95,
    whiten: bool = True,
    value_coef: NonNegative = 1.0,
) -> Method:
    """Compose on-policy MDPO.

    Token mean of -ρA + KL(π || π_old)/t. With exact advantages the optimum of one rollout is π_old·exp(t·A)/Z.
    """
    return Method(
        advantage=GAE(gamma=gamma, lam=lam),
        advantage_transform=(Whiten(key="batch", count="token", variance="sample"),) if whiten else (),
        objective=Capped(cap=None, cap_negative=None),
        aggregate=TokenMean(),
        regularize=(KLLoss(coef=1 / step_size, estimator="weighted_k3", anchor="old"),),
        critic=ValueLoss(lam=lam, gamma=gamma, clip=None, coef=value_coef),
    )


entry(
    "mdpo",
    mdpo,
    Card(
        title="Mirror Descent Policy Optimization, on-policy",
        papers=[Paper("Mirror Descent Policy Optimization", "2005.09814", 2020)],
        summary="Importance-weighted policy gradient without clip, held by the KL to the policy it started from.",
        formula="L = 1/Σ|y_i| Σ_i Σ_t [-ρ_t A_t + 1/t·KL(π || π_old)_t] + c·½(V - G)²,  A_t by GAE, standardised",
        defaults={
            "step_size": "the paper's first value t = 1; it falls linearly to 0 over the run",
            "gamma": "1, as for language models everywhere",
            "lam": "0.95, as ppo",
            "whiten": "the authors' code: advantages standardised per batch",
            "value_coef": "1 on half the squared error, as ppo",
        },
        differs=[
            "The step size t is constant; the paper lets it fall linearly to 0 over the run.",
            "KL(π || π_old) is estimated from the completions' tokens (k3 times the ratio, which has its "
            "gradient); the "
            "paper sums over all actions of each state.",
            "The policy loss is written as -sg[ρ]·A·log π, which has the gradient of -ρA.",
            "The off-policy and Tsallis variants are not here.",
        ],
        reduces=[
            Reduction("ppo", ["on_policy"], why="every ratio is 1 and the KL has no gradient there"),
        ],
        needs=["a critic (value head)", SEVERAL],
        confidence="partly",
        uncertain="The constant step size stands in for the paper's schedule.",
        source="manantomar/Mirror-Descent-Policy-Optimization: mdpo_on/mdpo.py",
        golden=[
            Golden(
                rewards=[1],
                lengths=[2],
                log_ratio=[[0.3, -0.5]],
                fields={"value_bt": [[0.5, 0.5]]},
                settings={"whiten": False, "step_size": 0.5},
                advantage=[[0.475, 0.5]],
                grad=[[0.084366175, -0.454897994]],
                why="(-ρ·A + 2·ρ·log ρ)/2: e^0.3·(-0.475 + 0.6)/2 and e^-0.5·(-0.5 - 1)/2",
            )
        ],
        recommended={"epochs": 10},
    ),
)
