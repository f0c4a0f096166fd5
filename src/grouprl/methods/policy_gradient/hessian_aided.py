"""REINFORCE with a momentum that is corrected by the curvature along the last step ((N-)HARPG)."""

from __future__ import annotations

from grouprl.algorithms.method import Method
from grouprl.algorithms.update.papers.hessian_aided import HessianAided
from grouprl.core.numbers import NonNegative
from grouprl.methods.card import Card, Golden, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import FISHER_PAPER, in_the_update


def harpg(base: Method, power: NonNegative = 1.0, decay: NonNegative = 1.0, normalised: bool = True) -> Method:
    """Compose (N-)HARPG: REINFORCE whose momentum follows the gradient by products with the Hessian."""
    return base.with_parts(update=HessianAided(power=power, decay=decay, normalised=normalised))


entry(
    "harpg",
    harpg,
    Card(
        title="Hessian-aided recursive policy gradient, normalised or not",
        papers=[FISHER_PAPER],
        summary="REINFORCE with momentum: old gradients are corrected by the curvature along the last step.",
        formula=(
            "θ_q = q·θ_t + (1-q)·θ_{t-1}, q ~ U[0, 1],  v_t = H(θ_q)(θ_t - θ_{t-1}), H = ∇²Φ + ∇Φ·∇log pᵀ on ŷ ~ π_q,  "
            "d_t = (1-η_t)·(d_{t-1} + v_t) + η_t·∇L(θ_t),  θ_{t+1} = θ_t - γ_t·d_t/|d_t|,  "
            "L = Φ = -1/B Σ_i Σ_t (R_i - b) log π(y_t)"
        ),
        defaults={
            "power": "η_t = (2/(t+2))^power; the paper's order: 1",
            "decay": "γ_t = lr·(2/(t+2))^decay; the paper: 1, times a constant",
            "normalised": "true is N-HARPG, with steps of the length γ_t; false is HARPG, γ_t·d_t",
        },
        differs=["Gradients and curvature are those of a whole rollout each, the paper's of one trajectory each."],
        reduces=[
            Reduction("reinforce", why="the loss is REINFORCE's; the momentum is in the update"),
            Reduction("n_pg_igt", why="the losses are the same; the two differ in how old gradients are made up for"),
        ],
        needs=["exactly one update per rollout"],
        confidence="partly",
        uncertain="the constants of η and γ, which are from memory",
        notes=[
            "On a small grid it shows no gain over reinforce with Adam, at twice the episodes, three seeds each "
            "(docs/control.md).",
            in_the_update("those of REINFORCE"),
            "With power 0 it is normalised REINFORCE: each step is along its own gradient.",
            "Every step but the first samples a second rollout, of policies between the two last ones.",
        ],
        source="the abstract, and general knowledge of the paper",
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
        ],
    ),
    base="reinforce",
    keeps=("baseline",),
)
