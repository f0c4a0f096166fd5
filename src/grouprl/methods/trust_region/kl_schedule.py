"""GRPO with a KL weight that follows the step of the run: GRPO-D."""

from __future__ import annotations

from grouprl.algorithms.method import Method
from grouprl.algorithms.regularize.kl import ValueEstimator
from grouprl.algorithms.regularize.papers.schedule import Curve, ScheduledKL
from grouprl.core.numbers import NonNegative
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, PPO_CLIP


def grpo_d(
    base: Method,
    kl_min: NonNegative = 0.001,
    kl_max: NonNegative = 0.04,
    curve: Curve = "linear",
    kl_estimator: ValueEstimator = "k3",
) -> Method:
    """Compose GRPO-D: GRPO with a KL loss whose weight goes from kl_min to kl_max over the run."""
    kl = ScheduledKL(coef=kl_max, low=kl_min, curve=curve, estimator=kl_estimator)
    return base.with_parts(
        regularize=(kl,) if kl_max > 0 else (),
    )


entry(
    "grpo_d",
    grpo_d,
    Card(
        title="GRPO with Dynamic KL (GRPO-D, OThink-MR1)",
        papers=[
            Paper(
                "OThink-MR1: Stimulating multimodal generalized reasoning capabilities via dynamic reinforcement "
                "learning",
                "2503.16081",
                2025,
            )
        ],
        summary="GRPO that explores first and stays near its reference later: the KL weight grows.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i) + β(step)·KL,  "
            "β from kl_min to kl_max over the run,  A_i = (R_i - mean_g R)/(std_g R + eps)"
        ),
        defaults={
            "kl_min": "ours: 0.001; the paper's bounds were not seen",
            "kl_max": "GRPO's own 0.04; the paper's bounds were not seen",
            "curve": "ours: linear; the paper's schedule was not seen",
            **PPO_CLIP,
        },
        differs=["The paper's curve is unknown: constant, linear, cosine and exponential are offered."],
        reduces=[
            Reduction(
                "grpo",
                settings={"curve": "constant", "kl_max": 0.1},
                other={"kl_coef": 0.1},
                why="a constant weight is GRPO's",
            ),
            Reduction("grpo", settings={"kl_min": 0.0, "kl_max": 0.0}, why="no KL"),
        ],
        needs=["at least two completions per prompt", "a reference model when kl_max is above 0"],
        confidence="partly",
        uncertain="The schedule and its bounds: only the idea, small first and larger later, could be confirmed.",
        source="the paper's abstract and notes of others; no official code was found",
        golden=[
            Golden(
                rewards=[1, 0],
                fields={"ref_bt": [[-1.5], [-1.0]], "step": 5, "steps": 11},
                settings={"kl_min": 0.0, "kl_max": 0.1, "scale": "none"},
                advantage=[0.5, -0.5],
                loss=0.0026632665,
                grad=[[-0.2401632665], [0.25]],
                why="half-way: β = 0.05; k3 = e^-0.5 - 1 + 0.5 = 0.1065307, its slope 0.3934693; both times 0.05/2",
            )
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)
