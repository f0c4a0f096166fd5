"""Clips whose bounds adapt: DCPO (probability), BAPO (balance), HAPO (entropy)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.advantage.papers.history import SmoothStandardized
from grouprl.algorithms.advantage.papers.token_relative import TokenRelative
from grouprl.algorithms.aggregate.aggregate import SequenceMean, TokenMean
from grouprl.algorithms.aggregate.papers.only_token_mean import OnlyTokenMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.adaptive_clip import Dual
from grouprl.algorithms.objective.papers.adaptive_clip import BalancedClip, DynamicClip, EntropyClip
from grouprl.algorithms.sampling.papers.budget import EntropyTemperature
from grouprl.core.levels import Alone
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import ALONE, CLIPS, GROUP, ClipLow, Spread

Ratio = Annotated[float, Field(gt=1)]


def dcpo_clip(
    base: Method,
    clip_high: Positive,
    eps: NonNegative,
    alone: Alone,
    clip_low: NonNegative = 0.16,
    cap: Ratio = 10.0,
    dual_clip: Dual = 10.0,
    smooth: bool = True,
    sequences: Literal["sum", "mean"] = "sum",
    scale: Spread = "sample_std",
) -> Method:
    """Compose DCPO.

    Sum over completions of the token mean of the loss clipped at bounds that solve |ρ - 1|·π = ε; A blends the
    standardised reward with that over all visits of the prompt.
    """
    plain = Relative("group", center="mean", scale=scale, eps=eps, alone=alone)
    return base.with_parts(
        advantage=SmoothStandardized(scale=scale, eps=eps) if smooth else plain,
        objective=DynamicClip(clip_low=clip_low, clip_high=clip_high, cap=cap, dual_clip=dual_clip),
        aggregate=OnlyTokenMean() if sequences == "sum" else SequenceMean(),
    )


entry(
    "dcpo_clip",
    dcpo_clip,
    Card(
        title="Dynamic Clipping Policy Optimization",
        papers=[Paper("DCPO: Dynamic Clipping Policy Optimization", "2509.02333", 2025)],
        summary="Clip bounds that widen for unlikely tokens, and advantages that remember a prompt's earlier visits.",
        formula=(
            "L = -Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, ½+½√max(1-4ε_low/q_t, 0), "
            "min(½+½√(1+4ε_high/q_t), cap)) A_i),  q_t = π_old(y_t),  at visit v of the prompt A = the smaller of "
            "A_tot/v + (1-1/v)A_new and A_new/v + (1-1/v)A_tot,  A_new = (R - mean_g R)/(std_g R + eps), A_tot the "
            "same with moments over all visits"
        ),
        defaults={
            "clip_low": "the paper: 0.16 (the script's default is 0.2)",
            "clip_high": "the paper: 0.2 (the script's default is 0.28)",
            "cap": "the authors' code: clip_ratio_c = 10",
            "dual_clip": "the authors' code: clip_ratio_c = 10",
            "smooth": "the paper: Smooth Advantage Standardisation; off, A = A_new",
            "sequences": "the paper: Only Token Mean sums over completions; 'mean' divides by their number",
            "alone": ALONE + "; only without smooth",
        },
        differs=[
            "The authors' code averages over the tokens of a micro-batch; here is the paper's sum of means per "
            "completion.",
            "Moments over visits with a standard deviation up to 1e-6 count as without spread.",
            "The spreads of earlier visits are sample standard deviations of the task's rewards, whatever `scale` is.",
        ],
        reduces=[
            Reduction(
                "grpo",
                ["on_policy"],
                settings={"smooth": False, "sequences": "mean"},
                why="every ratio is 1, within any bounds",
            ),
            Reduction("gspo", ["on_policy"], settings={"smooth": False}, scale=None, why="the sum is B times the mean"),
        ],
        needs=["at least two completions per prompt", "prompts that are sampled more than once, or smooth never acts"],
        source=(
            "lime-RL/DCPO verl/trainer/ppo/core_algos.py (get_clip_low_high, get_mean_std, "
            "compute_dcpo_outcome_advantage, compute_policy_loss_dcpo)"
        ),
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                log_ratio=[[0.3, 0.4], [-0.6]],
                settings={"smooth": False, "sequences": "mean"},
                advantage=[0.70710578, -0.70710578],
                loss=-0.29046305,
                grad=[[-0.23862324, 0.0], [0.19403394]],
                why="q = 1/e: bounds 0.5 and 1.39087; e^0.3 = 1.35 and e^-0.6 = 0.55 pass, e^0.4 = 1.49 does not",
            ),
            Golden(
                rewards=[1, 1],
                lengths=[2, 1],
                fields={
                    "past.visits": [1.0, 1.0],
                    "past.mean": [0.5, 0.5],
                    "past.std": [0.7071067811865476, 0.7071067811865476],
                },
                advantage=[0.2236064, 0.2236064],
                loss=-0.4472128,
                grad=[[-0.1118032] * 2, [-0.2236064]],
                why="all right now, mixed before: mean 0.75, var (0.5 + 0 + ½·0.25)/2 = 0.3125; A = ½·0.25/0.559018",
            ),
            Golden(
                rewards=[1, 0],
                fields={"past.visits": [3.0, 3.0], "past.mean": [0.0, 0.0], "past.std": [0.0, 0.0]},
                advantage=[1.05797292, -0.40290941],
                why=(
                    "visit 4: mean 0.125, var (0.5 + ¾·0.25)/4 = 0.171875: A_tot = 2.11057432 and -0.30151062, A_new = "
                    "±0.70710578; A_tot/4 + ¾A_new = 1.058 is smaller than 1.760, -0.606 larger than A_new/4 + ¾A_tot"
                ),
            ),
        ],
        recommended={"group": 16, "learning_rate": 1e-6},
    ),
    base="grpo",
    keeps=(),
)


def bapo(
    base: Method,
    low_start: ClipLow = 0.6,
    low_end: ClipLow = 0.9,
    high_start: Ratio = 1.2,
    high_end: Ratio = 3.0,
    low_step: Positive = 0.02,
    high_step: Positive = 0.05,
    target: Annotated[float, Field(ge=0, le=1)] = 0.4,
    dual_clip: Dual = 3.0,
) -> Method:
    """Compose BAPO.

    Token mean of the clipped loss with bounds of the ratio that are raised at every update until tokens of positive
    advantage make up the share `target` of the loss, weighted by the sampler's probabilities; A as in GRPO.
    """
    objective = BalancedClip(
        low_start=low_start,
        low_end=low_end,
        high_start=high_start,
        high_end=high_end,
        low_step=low_step,
        high_step=high_step,
        target=target,
        dual_clip=dual_clip,
    )
    return base.with_parts(
        objective=objective,
        aggregate=TokenMean(),
    )


entry(
    "bapo",
    bapo,
    Card(
        title="Balanced Policy Optimization with Adaptive Clipping",
        papers=[
            Paper(
                "BAPO: Stabilizing Off-Policy Reinforcement Learning for LLMs via Balanced Policy Optimization with "
                "Adaptive Clipping",
                "2510.18927",
                2025,
            )
        ],
        summary="Widen the clip at every update until the tokens of good completions carry a given share of the loss.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, c_low, c_high) A_i),  c raised from their starts (c_high "
            "first) until Σ_{A>0} π_b |ℓ_t| ≥ target·Σ π_b |ℓ_t|, ℓ_t the clipped term"
        ),
        defaults={
            "low_start": "the paper: a- = 0.6",
            "low_end": "the paper: b- = 0.9",
            "high_start": "the paper: a+ = 1.2",
            "high_end": "the paper: b+ = 3.0",
            "low_step": "the paper: δ2 = 0.02",
            "high_step": "the paper: δ1 = 0.05",
            "target": "a note on the paper: ρ0 = 0.4 (the README has 0.5)",
            "dual_clip": "the authors' code: 3",
        },
        differs=[
            "The authors' port raises the lower bound first, compares good with bad tokens without their "
            "probabilities and has other numbers; here is the paper's order and measure.",
            "The share is measured over the optimiser step.",
        ],
        reduces=[
            Reduction(
                "grpo",
                ["equal_lengths"],
                settings={"target": 0.0, "low_start": 0.8, "high_start": 1.2, "dual_clip": None},
                why="any share is enough: the bounds stay at their starts",
            ),
            Reduction(
                "dapo",
                ["mixed_groups", "equal_lengths"],
                settings={"target": 1.0, "low_end": 0.6, "high_end": 1.2, "dual_clip": None},
                other={"clip_low": 0.4, "clip_high": 0.2},
                why="the bounds cannot move",
            ),
        ],
        needs=[
            "at least two completions per prompt",
            "log-probs of the sampler",
            "all rows of an optimiser step together",
        ],
        confidence="partly",
        uncertain="The target share: 0.4 in one source, 0.5 in another.",
        source="WooooDyy/BAPO recipe/bapo/policy_loss.py, config, script and README; a note on the paper",
        golden=[
            Golden(
                rewards=[1, 0],
                log_ratio=[[0.5], [0.0]],
                advantage=[0.70710578, -0.70710578],
                loss=-0.07071058,
                grad=[[0.0], [0.35355289]],
                why="at [0.6, 1.2] the good token has 1.2/2.2 of the loss: enough; e^0.5 = 1.65 is clipped",
            ),
            Golden(
                rewards=[1, 0],
                log_ratio=[[0.5], [0.0]],
                settings={"target": 0.62},
                loss=-0.22935728,
                grad=[[-0.58291017], [0.35355289]],
                why="c_high rises to 1.65, where 1.6487/2.6487 = 0.6225 is reached; the token is free again",
            ),
        ],
        notes=[
            "Raising the lower bound always lowers the share of good tokens, so once the upper bound is exhausted the "
            "lower one runs to its end; it then takes the gradient from bad tokens that are already unlikely."
        ],
    ),
    base="grpo",
    keeps=GROUP,
)


def hapo(
    base: Method,
    clip_low: ClipLow,
    clip_high: Positive,
    eps: NonNegative,
    dual_clip: Dual = 10.0,
    pivot: Annotated[float, Field(ge=0, le=1)] = 0.8,
    adapt_clip: bool = True,
    redistribute: bool = True,
    temperature: Annotated[float, Field(ge=0, lt=1)] = 0.05,
    released: bool = False,
    limit: Annotated[float, Field(gt=0)] | None = 5.0,
) -> Method:
    """Compose HAPO.

    Uncertain tokens are sampled hotter, certain ones colder, by up to `temperature` (0: none). Token mean of the
    clipped loss; A relative to the group's tokens; a certain token may fall further, an uncertain one rise further, and
    advantages are moved between them by their entropy score ĥ.
    """
    return base.with_parts(
        advantage=TokenRelative(eps=eps, limit=limit),
        objective=EntropyClip(
            clip_low=clip_low,
            clip_high=clip_high,
            pivot=pivot,
            adapt=adapt_clip,
            redistribute=redistribute,
            released=released,
            dual_clip=dual_clip,
        ),
        aggregate=TokenMean(),
        sampling=EntropyTemperature(tau=temperature, pivot=pivot, released=released) if temperature > 0 else None,
    )


entry(
    "hapo",
    hapo,
    Card(
        title="Heterogeneous Adaptive Policy Optimization",
        papers=[
            Paper(
                "From Uniform to Heterogeneous: Tailoring Policy Optimization to Every Token's Nature",
                "2509.16591",
                2025,
            )
        ],
        summary="Group statistics over tokens, and clip bounds and advantages that follow each token's entropy.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A'_t, clip(ρ_t, 1-ε_low(ĥ_t), 1+ε_high(ĥ_t)) A'_t),  A'_t = A_i(1+ĥ_t) for "
            "uncertain tokens on the move and certain ones at rest,  A_i = (R_i - mean_tokens R)/(std_tokens R + eps)"
        ),
        defaults={
            "clip_low": "the authors' scripts: 0.2",
            "clip_high": "the authors' scripts: 0.2",
            "dual_clip": "the authors' scripts: 10",
            "pivot": "the authors' scripts: the 0.8-quantile of log H",
            "adapt_clip": "the paper: asymmetric adaptive clipping",
            "redistribute": "the paper: differential advantage redistribution",
            "temperature": "the authors' scripts: τ = 0.05 of adaptive temperature sampling",
            "released": "off: the paper's signed ĥ",
            "eps": "the authors' code: 1e-6",
            "limit": "the authors' code: groups with an |A| of 5 or more get GRPO's advantage",
        },
        differs=[
            "The first step is sampled at the run's temperature: the scale of ĥ is that of the step before.",
            "The authors' code divides negative ĥ by a negative number, so that it is never negative and the branches "
            "for certain tokens never act; released=True has that.",
            "Entropies are those of the sampling policy; their statistics are over the optimiser step.",
        ],
        reduces=[
            Reduction(
                "grpo",
                ["equal_lengths"],
                settings={"adapt_clip": False, "redistribute": False, "dual_clip": None, "limit": None},
                other={"scale": "population_std"},
                why="equal lengths: the statistics over tokens are those over completions",
            ),
        ],
        needs=[
            "at least two completions per prompt",
            "entropies of the sampler",
            "all rows of an optimiser step together",
        ],
        source="starriver030515/HAPO verl/trainer/ppo/core_algos.py, recipe/train.md",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[3, 3],
                log_ratio=[[0.3, 0.0, 0.0], [0.0, 0.0, 0.0]],
                fields={"entropy_bt": [[2.718281828459045, 1.0, 0.1353352832366127], [0.36787944117144233, 1.0, 1.0]]},
                advantage=[0.999998, -0.999998],
                loss=-0.19995254,
                grad=[[-0.44995204, -0.16666633, 0.0], [0.08333317, 0.16666633, 0.16666633]],
                why="ĥ = 1, 0, -1 and -0.5, 0, 0; e^0.3 has left 1 ± 0.2 and 1.4 bounds it: 2A; at rest 0 and A/2",
            ),
            Golden(
                rewards=[1, 0],
                lengths=[1, 3],
                fields={"entropy_bt": [[1.0], [1.0, 1.0, 1.0]]},
                advantage=[1.73204681, -0.57734894],
                grad=[[-0.4330117], [0.14433723, 0.14433723, 0.14433723]],
                why="mean 1/4 and std √(3/16) over four tokens; equal entropies change nothing",
            ),
        ],
        recommended={"group": 16, "learning_rate": 1e-6, "updates per rollout": 16},
    ),
    base="grpo",
    keeps=CLIPS,
)
