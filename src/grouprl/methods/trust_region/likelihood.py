"""GRPO with a guard of the likelihood of good completions: LLDS."""

from __future__ import annotations

from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.regularize.kl import Estimator
from grouprl.algorithms.regularize.papers.likelihood import Gate, LikelihoodGuard
from grouprl.core.numbers import NonNegative
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, KL_NEED, kl_terms


def llds(
    base: Method,
    kl_estimator: Estimator,
    coef: NonNegative = 0.2,
    gate: Gate = "run",
    kl_coef: NonNegative = 0.001,
) -> Method:
    """Compose GRPO with LLDS.

    Token mean of the clipped loss plus λ·max(0, log π_old - log π) on completions with A ≥ 0, if a stretch of the
    policy's own tokens became less likely as a whole; plus β·KL.
    """
    guard = (LikelihoodGuard(coef=coef, gate=gate),) if coef > 0 else ()
    return base.with_parts(
        aggregate=TokenMean(),
        regularize=(*guard, *kl_terms(kl_coef, kl_estimator)),
    )


entry(
    "llds",
    llds,
    Card(
        title="GRPO with a likelihood-preserving regulariser",
        papers=[
            Paper("On GRPO Collapse in Search-R1: The Lazy Likelihood-Displacement Death Spiral", "2512.04220", 2025)
        ],
        summary="GRPO with a cost where good completions become less likely during an update: the start of "
        "its collapse.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t (min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i) - λ [A_i ≥ 0] [Σ_run d > 0] max(0, d_t)) + "
            "β·KL,  d_t = log π_old(y_t) - log π(y_t)"
        ),
        defaults={
            "coef": "the authors' script: λ = 0.2",
            "gate": "the authors' script: per stretch between tool outputs",
            "clip_low": "the authors' script: 0.2",
            "clip_high": "the authors' script: 0.2",
            "kl_coef": "the authors' script: 0.001",
        },
        differs=[
            "Without the variant that gives the tokens of the final answer their own weight (MA).",
            "A fall of at most 512 units in the last place of 1 (6e-5 nats in float32) is rounding: none.",
        ],
        reduces=[
            Reduction("grpo", ["on_policy", "equal_lengths"], settings={"kl_coef": 0.0}, why="nothing has fallen yet"),
            Reduction("grpo", ["equal_lengths"], settings={"kl_coef": 0.0, "coef": 0.0}, why="without the regulariser"),
        ],
        needs=["at least two completions per prompt", "two or more updates per rollout, or nothing can fall", KL_NEED],
        source="vengdeng/LLDS (repository of the paper) verl/workers/actor/dp_actor.py, train_grpo_nqhot.sh, README",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[3, 1],
                log_ratio=[[-0.1, 0.05, 0.0], [-0.1]],
                settings={"kl_coef": 0.0},
                advantage=[0.70710578, -0.70710578],
                loss=-0.35761641,
                grad=[[-0.20995394, -0.18583997, -0.17677645], [0.15995394]],
                why=(
                    "d = 0.1, -0.05, 0 sums to 0.05 > 0: the first token costs 0.2·0.1; the bad completion costs "
                    "nothing"
                ),
            ),
            Golden(
                rewards=[1, 0],
                lengths=[3, 1],
                log_ratio=[[-0.1, 0.2, 0.0], [0.0]],
                settings={"kl_coef": 0.0},
                grad=[[-0.15995394, 0.0, -0.17677645], [0.17677645]],
                why="the completion as a whole rose: no cost; e^0.2 = 1.2214 is clipped",
            ),
        ],
        recommended={"group": 5, "learning_rate": 1e-6, "updates per rollout": 2},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)
