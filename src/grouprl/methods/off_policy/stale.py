"""Methods for completions sampled ahead of their update: decoupled PPO, M2PO, the probability mask of prime-rl."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.importance import Importance
from grouprl.algorithms.objective.papers.stale import Beyond, InterpolatedClip, ProbabilityMask
from grouprl.algorithms.regularize.regularize import KLLoss
from grouprl.algorithms.token_weight.importance import MaskedImportance, TruncatedImportance
from grouprl.algorithms.token_weight.papers.second_moment_mask import SecondMomentMask
from grouprl.core.levels import Alone
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import ALONE, CLIPS, GROUP, ClipLow

Proximal = Literal["recomputed", "interpolated"]
Moved = Annotated[float, Field(gt=0, le=1)]
AREAL = "AReaL, examples"
TWO = "at least two completions per prompt"
AHEAD = (
    "completions of earlier policies (run.async_steps above 0): with the current one's the correction is an identity"
)


def decoupled_ppo(
    base: Method,
    clip_low: ClipLow,
    clip_high: Positive,
    cap: Positive | None = 5.0,
    beyond: Beyond = "mask",
    proximal: Proximal = "recomputed",
) -> Method:
    """Compose decoupled PPO on group advantages: the clip around π_prox, the behaviour weight π_prox/π_b limited by
    `cap`.

    `proximal` "interpolated" spares the forward pass that computes π_prox.
    """
    if proximal == "interpolated":
        objective = InterpolatedClip(clip_low=clip_low, clip_high=clip_high, cap=cap, beyond=beyond)
        return base.with_parts(objective=objective, aggregate=TokenMean())
    return base.with_parts(token_weight=(_behaviour(cap, beyond),), aggregate=TokenMean())


entry(
    "decoupled_ppo",
    decoupled_ppo,
    Card(
        title="Decoupled PPO for asynchronous training",
        papers=[
            Paper(
                "AReaL: A Large-Scale Asynchronous Reinforcement Learning System for Language Reasoning",
                "2505.24298",
                2025,
            ),
            Paper("Batch size-invariance for policy optimization", "2110.00641", 2021),
        ],
        summary="The clip holds the policy near the update's start; a weight corrects for what sampled the data.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t sg[w_t]·min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  ρ_t = π/π_prox,  w_t = π_prox/π_b, "
            "0 above the cap;  A_i = (R_i - mean_g R)/(std_g R + eps)"
        ),
        defaults={
            "clip_low": "customary; AReaL's examples have 0.4",
            "clip_high": "customary; AReaL's examples have 0.4",
            "cap": f"{AREAL}: behav_imp_weight_cap 5",
            "beyond": "AReaL masks; truncate is TIS",
            "proximal": "AReaL recomputes it by default",
        },
        differs=[
            "Advantages are GRPO's; the paper's are rewards normalised over the batch.",
            "Interpolated: log π_prox = log π_b + α(log π - log π_b), α = (v - v_b)/(v + 1 - v_b), as in AReaL's code, "
            "in place of a forward pass; the paper recomputes.",
        ],
        reduces=[
            Reduction("grpo", ["on_policy", "equal_lengths"], why="w = 1: nothing to correct"),
            Reduction(
                "grpo",
                ["on_policy", "equal_lengths"],
                settings={"proximal": "interpolated"},
                why="π_b = π: wherever the proximal policy lies between them, it is both",
            ),
        ],
        needs=[TWO, AHEAD],
        confidence="partly",
        source="AReaL's code (decoupled loss, proximal approximations), read through its documentation",
        uncertain="The defaults of the examples change between versions of the code.",
        golden=[
            Golden(
                rewards=[1, 0],
                log_ratio=[[0.1], [-0.3]],
                fields={"behavior_bt": [[-1.5], [-1.0]]},
                advantage=[0.70710578, -0.70710578],
                loss=-0.36137306,
                grad=[[-0.64421537], [0.0]],
                why="w = e^0.5, ρ = e^0.1: -A·1.6487213·1.1051709/2; e^-0.3 < 0.8 with A < 0 is clipped at 0.8·|A|",
            ),
            Golden(
                rewards=[1, 0],
                log_ratio=[[0.1], [-0.3]],
                settings={"cap": 1.5},
                fields={"behavior_bt": [[-1.5], [-1.0]]},
                grad=[[0.0], [0.0]],
                why="w = e^0.5 = 1.65 > 1.5: left out",
            ),
            Golden(
                rewards=[1, 0],
                log_ratio=[[0.1], [-0.1]],
                settings={"cap": 1.5, "beyond": "truncate"},
                fields={"behavior_bt": [[-1.5], [-1.0]]},
                grad=[[-0.58610456], [0.31990788]],
                why="-A·1.5·e^0.1/2; A·e^-0.1/2",
            ),
            Golden(
                rewards=[1, 0],
                log_ratio=[[0.3], [-0.1]],
                settings={"proximal": "interpolated"},
                fields={"behavior_bt": [[-1.0], [-1.0]], "version_bt": [[1], [3]], "step": 3},
                grad=[[-0.47724648], [0.31990788]],
                why="two versions old: α = 2/3, w = e^0.2, ρ = e^0.1: -A·e^0.3/2; the other is the current policy's",
            ),
        ],
        recommended={"async_steps": "2 to 8"},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)


def _behaviour(cap: float | None, beyond: Beyond) -> MaskedImportance | TruncatedImportance:
    """Return the part that multiplies by π_old/π_behavior."""
    if beyond == "truncate":
        return TruncatedImportance(high=FREE if cap is None else cap)
    return MaskedImportance(low=0.0, high=FREE if cap is None else cap)


FREE = 1e9
"""A cap that no weight reaches: exponents are within ±20."""


def m2po(base: Method, threshold: Positive = 0.04) -> Method:
    """Compose M2PO: the ratio to the sampler times group advantages, under the second-moment mask."""
    return base.with_parts(
        token_weight=(SecondMomentMask(threshold=threshold),),
        objective=Importance(against="behavior"),
        aggregate=TokenMean(),
    )


entry(
    "m2po",
    m2po,
    Card(
        title="Second-moment trust policy optimization",
        papers=[
            Paper(
                "Prosperity before Collapse: How Far Can Off-Policy RL Reach with Stale Data on LLMs?",
                "2510.01161",
                2025,
            )
        ],
        summary="Importance-weighted policy gradient without the few tokens on which policy and sampler differ most.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t M_t·ρ_t·A_i,  ρ_t = π/π_b;  M drops the largest (log π_old/π_b)² until the mean of "
            "the rest ≤ τ;  A_i = (R_i - mean_g R)/(std_g R + eps)"
        ),
        defaults={
            "threshold": "AReaL's examples: 0.04",
        },
        differs=["The mask is computed once per rollout, from the policy at the start of the update, as in AReaL."],
        reduces=[Reduction("grpo", ["on_policy", "equal_lengths"], why="ρ = 1, and all differences are 0")],
        needs=[TWO, AHEAD],
        confidence="partly",
        uncertain="The paper's text was not at hand: whether its mask is limited to tokens that a clip would act on.",
        source="AReaL's documentation of its M2PO mask; the paper's abstract",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                settings={"threshold": 0.06, "scale": "none"},
                fields={"behavior_bt": [[-1.3, -1.6], [-1.1]]},
                advantage=[0.5, -0.5],
                grad=[[-0.22497647, 0.0], [0.18419515]],
                why="squares 0.09, 0.36, 0.01: the mean 0.46/3 is above 0.06, (0.09 + 0.01)/2 is not; -0.5·e^0.3/3 and "
                "0.5·e^0.1/3",
            ),
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                settings={"threshold": 0.04, "scale": "none"},
                fields={"behavior_bt": [[-1.3, -1.6], [-1.1]]},
                grad=[[0.0, 0.0], [0.18419515]],
                why="(0.09 + 0.01)/2 > 0.04: only the smallest stays",
            ),
        ],
        notes=["The abstract reports stable training on data 256 updates old."],
    ),
    base="grpo",
    keeps=GROUP,
)


def dppo_mask(clip_low: Moved = 0.2, clip_high: Moved = 0.2, pull: NonNegative = 1e-3, alone: Alone = "zero") -> Method:
    """Compose prime-rl's default loss: the probability mask, and `pull`·(log ρ)² on all tokens."""
    back = (KLLoss(coef=2 * pull, estimator="k2", anchor="behavior"),) if pull > 0 else ()
    return Method(
        advantage=Relative("group", center="mean", scale="none", alone=alone),
        objective=ProbabilityMask(clip_low=clip_low, clip_high=clip_high),
        aggregate=TokenMean(),
        regularize=back,
    )


entry(
    "dppo_mask",
    dppo_mask,
    Card(
        title="Probability-difference mask (prime-rl's default loss)",
        papers=[Paper("PrimeIntellect-ai/prime-rl, the default loss (DPPO mask)", year=2026)],
        summary="Policy gradient with the ratio to the sampler; tokens whose probability has moved too far drop out.",
        formula=(
            "L = 1/Σ|y_i| Σ_i Σ_t [ -M_t ρ_t A_i + c·(log ρ_t)² ],  ρ_t = π/π_b,  A_i = R_i - mean_g R;  "
            "M_t = 0 where A > 0 and π - π_b > δ_high, or A < 0 and π - π_b < -δ_low"
        ),
        defaults={
            "clip_low": "prime-rl: 0.2",
            "clip_high": "prime-rl: 0.2",
            "pull": "prime-rl: 1e-3",
            "alone": ALONE,
        },
        differs=["The sampler's log-probs are the only old policy, as there; no proximal policy is computed."],
        reduces=[
            Reduction("dr_grpo", ["on_policy", "equal_lengths"], scale=None, why="ρ = 1 and nothing has moved"),
        ],
        needs=[TWO, AHEAD],
        confidence="partly",
        uncertain="Read from the project's documentation, not run against its code.",
        source="PrimeIntellect-ai/prime-rl, documentation of the loss",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                settings={"pull": 0.0},
                log_ratio=[[0.5, 0.3], [-0.9]],
                fields={"behavior_bt": [[-1.0, -1.0], [-1.0]]},
                advantage=[0.5, -0.5],
                grad=[[0.0, -0.22497647], [0.0]],
                why="π - π_b = e^-0.5 - e^-1 = 0.239 and e^-1.9 - e^-1 = -0.218 are too far, e^-0.7 - e^-1 = 0.129 is "
                "not: -0.5·e^0.3/3",
            ),
            Golden(
                rewards=[1, 0],
                settings={"pull": 0.1},
                log_ratio=[[0.5], [0.0]],
                fields={"behavior_bt": [[-1.0], [-1.0]]},
                grad=[[0.05], [0.25]],
                why="the first is dropped, but pulled back: 2·0.1·0.5/2; the second 0.5/2",
            ),
        ],
    ),
)
