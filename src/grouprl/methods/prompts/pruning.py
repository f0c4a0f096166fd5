"""Methods that sample many completions and update on few, chosen before or after advantages are
computed (PODS, CPPO).
"""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.filter.papers.pruned import MaxVariance
from grouprl.algorithms.method import Method
from grouprl.algorithms.prune.papers.by_advantage import ByAdvantage
from grouprl.core.numbers import NonNegative, ShareBelowOne
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, KL, KL_NEED, PPO_CLIP

TIES = "Completions that tie are told apart by a fixed shuffle made from their log-probs, so that row order has no say."


def cppo(
    base: Method,
    rate: ShareBelowOne = 0.5,
    scope: Literal["group", "batch"] = "group",
    which: Literal["smallest", "largest", "any"] = "smallest",
    eps: NonNegative = 1e-4,
) -> Method:
    """Compose CPPO.

    GRPO whose group statistics use all completions, trained on the floor(G(1 - rate)) completions of largest |A| per
    prompt, as in the paper; its KL of 0.04 is off by default.
    """
    return base.with_parts(
        prune=(ByAdvantage(rate=rate, scope=scope, which=which),),
    )


entry(
    "cppo",
    cppo,
    Card(
        title="Completion Pruning Policy Optimization",
        papers=[
            Paper(
                "CPPO: Accelerating the Training of Group Relative Policy Optimization-Based Reasoning Models",
                "2503.22342",
                2025,
            )
        ],
        summary="GRPO that compares all completions and trains only on those with the largest |A|.",
        formula=(
            "L = -1/k Σ_{i∈S} 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  "
            "S = the k = floor(G(1-P)) largest |A_i| of each group,  A_i = (R_i - mean_g R)/(std_g R + eps) over all G"
        ),
        defaults={
            "rate": "P = 0.5, the mildest of the paper's rates (to 0.9375)",
            "scope": "the paper prunes every prompt; both released codes prune the whole batch",
            "which": "the paper: the smallest |A| go; the others are its ablations",
            **PPO_CLIP,
            "eps": "lzhxmu/CPPO: 1e-4, as in TRL",
            "kl_coef": "off, so that no reference is needed; the code has 0.04",
        },
        differs=[
            "The KL to the reference is off by default; the code has 0.04 (k3).",
            "Completions that stay weigh the same; the released loss is a mean over all their tokens "
            "(aggregate: token_mean).",
            "scope=group prunes each prompt, as the paper writes; the released codes take the largest |A| of the "
            "whole batch, so that a prompt can lose all its completions or none (scope=batch).",
            "Pruned completions are sampled, scored and judged, and never updated on; at least one of a group stays.",
            TIES,
            "No dynamic allocation of completions: batch.prompts / (1 - P) in the run's settings has its effect.",
        ],
        reduces=[Reduction("grpo", settings={"rate": 0.0}, other={"eps": 1e-4}, why="nothing is pruned")],
        needs=["at least two completions per prompt", KL_NEED],
        source="lzhxmu/CPPO, its TRL and verl trees",
        golden=[
            Golden(
                rewards=[1, 0.6, 0.3, 0],
                lengths=[1, 1, 1, 2],
                advantage=[1.22864444, 0.0, 0.0, -1.11163069],
                loss=-0.05850688,
                grad=[[-0.61432222], [0.0], [0.0], [0.27790767] * 2],
                why="mean 0.475, std 0.4272002; of 1.2286, 0.2925, 0.4095, 1.1116 the first and the last stay",
            )
        ],
        notes=["The cost of sampling completions does not fall, only that of training on them."],
        recommended={"group": 16, "updates per rollout": 2, "learning_rate": 1e-6, "kl_coef": 0.04},
    ),
    base="grpo",
    keeps=(*CLIPS, *KL, "scale", "alone"),
)


def pods(base: Method, rate: ShareBelowOne = 0.75) -> Method:
    """Compose PODS with max-variance down-sampling.

    GRPO on the subset of each group with the largest variance of reward, judged among themselves.
    """
    return base.with_parts(
        filter=(MaxVariance(rate=rate),),
    )


entry(
    "pods",
    pods,
    Card(
        title="Policy Optimization with Down-Sampling",
        papers=[
            Paper(
                "Not All Rollouts are Useful: Down-Sampling Rollouts in LLM Reinforcement Learning", "2504.13818", 2025
            )
        ],
        summary="GRPO on the completions of each prompt whose rewards vary most; the others are never compared.",
        formula=(
            "L = -1/m Σ_{i∈S} 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  "
            "S = argmax_{|S|=m} Var(R_S),  A_i = (R_i - mean_S R) / (std_S R + eps)"
        ),
        defaults={
            "rate": "0.75: 16 of 64 completions stay, the paper's example",
            **PPO_CLIP,
            "kl_coef": "off, so that no reference is needed",
        },
        differs=[
            "At least two completions of a prompt stay, so that there is something to compare.",
            TIES,
        ],
        reduces=[Reduction("grpo", settings={"rate": 0.0}, why="every completion stays")],
        needs=["at least two completions per prompt", KL_NEED],
        confidence="partly",
        uncertain="That advantages are normalised over the kept completions, the sizes n and m, the KL.",
        source="the paper's abstract and introduction; a comparison in a later paper (D3S)",
        golden=[
            Golden(
                rewards=[0, 1, 0.2, 0.9],
                lengths=[1, 2, 1, 1],
                settings={"rate": 0.5},
                advantage=[-0.70710578, 0.70710578, 0.0, 0.0],
                loss=0.0,
                grad=[[0.35355289], [-0.17677645] * 2, [0.0], [0.0]],
                why="0 and 1 vary most: mean 0.5, std 0.7071068; two completions",
            )
        ],
        recommended={"group": 64, "rate": 0.75},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP, *KL),
)
