"""Methods that update twice on one rollout: unlikely tokens first, then the others (Lopti)."""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.token_weight.probability_weight import ProbabilityWeight
from grouprl.algorithms.update.update import TwoPhase
from grouprl.core.numbers import NonNegative, Positive, Share
from grouprl.methods.card import Card, Golden, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import GROUP, KL_NEED, in_the_update
from grouprl.methods.token_credit.token_weights import AR_PAPER

Split = Literal["probability", "quantile"]
Order = Literal["low_first", "high_first"]

SOURCE = "zhyang2226/AR-Lopti verl/trainer/ppo/ray_trainer.py (seperate_updating, compute_reweight_advantage), scripts"
DEFAULTS = {
    "eta": "the paper: 0.5 (the script of Lopti alone has 0.4)",
    "by": "the paper: a fixed probability; the authors' code has a quantile mode too",
    "order": "the paper: unlikely tokens first; the other order is its harmful control",
    "clip_low": "the authors' scripts",
    "clip_high": "the authors' scripts: 0.24",
    "kl_coef": "the authors' scripts: 0.001",
}
DIFFERS = [
    "The denominators are those of all tokens in both phases, and tokens of the other phase are out of every term: "
    "before anything moves, the two gradients add up to that of the single update.",
    "An optimiser step without a token of its phase is left out.",
    "by=quantile takes the eta-quantile of the probabilities of the rollout's tokens.",
]
NOTES = [
    in_the_update("one update on all tokens (ar_lopti: with its token weights)"),
    "Every token is used once per epoch, but the optimiser takes twice the steps.",
    "In the second phase the policy has moved already: its ratios are not 1, and the clip acts on them.",
]
RECOMMENDED: dict[str, object] = {"group": 8, "learning_rate": 1e-6, "temperature": 0.7}


def lopti(
    base: Method,
    eta: Share = 0.5,
    by: Split = "probability",
    order: Order = "low_first",
    clip_high: Positive = 0.24,
    kl_coef: NonNegative = 0.001,
) -> Method:
    """Compose GRPO with Lopti.

    Token mean of the clipped loss plus β·KL; all optimiser steps on the tokens below η, then all on the others.
    """
    return base.with_parts(
        aggregate=TokenMean(),
        update=TwoPhase(eta=eta, by=by, order=order),
    )


entry(
    "lopti",
    lopti,
    Card(
        title="Low-Probability Token Isolation (Lopti)",
        papers=[AR_PAPER],
        summary="GRPO that updates twice per rollout: on the unlikely tokens first, then on the others.",
        formula=(
            "L_1 = -1/Σ|y_i| Σ_{π_old(y_t) < η} min(ρ_t A_i, clip(ρ_t, 1-ε_low, 1+ε_high) A_i) + β·KL, then L_2 = the "
            "same over π_old(y_t) ≥ η,  A_i = (R_i - mean_g R)/(std_g R + eps)"
        ),
        defaults=DEFAULTS,
        differs=DIFFERS,
        reduces=[
            Reduction(
                "advantage_reweighting",
                settings={"eta": 0.0},
                other={"alpha": 0.0},
                why="no token is unlikely: one update with weights of 1",
            ),
            Reduction(
                "grpo",
                ["equal_lengths"],
                settings={"eta": 0.0, "kl_coef": 0.0},
                other={"clip_high": 0.24},
                why="one update, and the means agree",
            ),
        ],
        needs=["at least two completions per prompt", KL_NEED],
        source=SOURCE,
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 2],
                log_ratio=[[0.1], [0.0, 0.0]],
                settings={"kl_coef": 0.0},
                advantage=[0.70710578, -0.70710578],
                loss=0.21091294,
                grad=[[-0.26049091], [0.23570193, 0.23570193]],
                why="the loss of both phases together: three tokens, e^0.1 is free",
            )
        ],
        notes=NOTES,
        recommended=RECOMMENDED,
    ),
    base="grpo",
    keeps=(*GROUP, "clip_low", "kl_estimator"),
)


def ar_lopti(
    base: Method,
    alpha: Share = 0.3,
    eta: Share = 0.5,
    by: Split = "probability",
    order: Order = "low_first",
    clip_high: Positive = 0.24,
    kl_coef: NonNegative = 0.001,
) -> Method:
    """Compose GRPO with Advantage Reweighting and Lopti.

    As lopti, with every token's clipped loss times α·π_old(y_t) + 1 - α; the KL is not weighted.
    """
    return base.with_parts(
        token_weight=(ProbabilityWeight(alpha=alpha),),
        aggregate=TokenMean(),
        update=TwoPhase(eta=eta, by=by, order=order),
    )


entry(
    "ar_lopti",
    ar_lopti,
    Card(
        title="Advantage Reweighting with Lopti (AR & Lopti)",
        papers=[AR_PAPER],
        summary="GRPO with both remedies: unlikely tokens weigh less, and are updated on first and apart.",
        formula=(
            "L_1 = -1/Σ|y_i| Σ_{π_old(y_t) < η} min(ρ_t A_t, clip(ρ_t, 1-ε_low, 1+ε_high) A_t) + β·KL, then L_2 = the "
            "same over π_old(y_t) ≥ η,  A_t = (α·π_old(y_t) + 1 - α)·(R_i - mean_g R)/(std_g R + eps)"
        ),
        defaults={
            "alpha": "the authors' scripts for both together: 0.3",
            **DEFAULTS,
        },
        differs=DIFFERS,
        reduces=[
            Reduction(
                "lopti",
                settings={"alpha": 0.0},
                why="every weight is 1",
            ),
            Reduction(
                "advantage_reweighting",
                settings={"eta": 0.0},
                other={"alpha": 0.3},
                why="no token is unlikely: one update",
            ),
        ],
        needs=["at least two completions per prompt", KL_NEED],
        source=SOURCE,
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 2],
                log_ratio=[[0.1], [0.0, 0.0]],
                settings={"kl_coef": 0.0},
                advantage=[0.70710578, -0.70710578],
                loss=0.17091622,
                grad=[[-0.21109241], [0.19100423, 0.19100423]],
                why="old log-probs are -1: weight 0.3/e + 0.7 = 0.81036383; three tokens; e^0.1 is free",
            )
        ],
        notes=NOTES,
        recommended=RECOMMENDED,
    ),
    base="grpo",
    keeps=(*GROUP, "clip_low", "kl_estimator"),
)
