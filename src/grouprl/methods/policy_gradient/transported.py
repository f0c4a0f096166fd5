"""REINFORCE with a momentum that needs no correction for old gradients (N-PG-IGT)."""

from __future__ import annotations

from grouprl.algorithms.method import Method
from grouprl.algorithms.update.papers.transported import Transported
from grouprl.core.numbers import NonNegative
from grouprl.methods.card import Card, Golden, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import FISHER_PAPER, in_the_update


def n_pg_igt(base: Method, power: NonNegative = 0.8, decay: NonNegative = 1.0) -> Method:
    """Compose N-PG-IGT: REINFORCE whose completions are sampled ahead of the weights, and steps of a set length."""
    return base.with_parts(update=Transported(power=power, decay=decay))


entry(
    "n_pg_igt",
    n_pg_igt,
    Card(
        title="Normalised policy gradient with implicit gradient transport",
        papers=[FISHER_PAPER],
        summary="REINFORCE with momentum: gradients are taken ahead of the weights, steps have the length of the rate.",
        formula=(
            "ϑ_t = θ_t + (1-η_t)/η_t·(θ_t - θ_{t-1}),  y ~ π_ϑ,  d_t = (1-η_t)·d_{t-1} + η_t·∇L(ϑ_t),  "
            "θ_{t+1} = θ_t - γ_t·d_t/|d_t|,  L = -1/B Σ_i Σ_t (R_i - b) log π(y_t)"
        ),
        defaults={
            "power": "η_t = (2/(t+2))^power, the paper: 4/5",
            "decay": "γ_t = lr·(2/(t+2))^decay, the paper: 1, times a constant",
        },
        differs=[
            "The gradient is that of a whole batch, the paper's of one trajectory.",
            "The paper's second method, (N)-HARPG, which corrects old gradients by a product with the Hessian, is the "
            "entry harpg.",
            "Evaluations and checkpoints between two steps are of ϑ; the run ends with θ.",
        ],
        reduces=[
            Reduction("reinforce", why="the loss is REINFORCE's; the momentum is in the update"),
        ],
        needs=["exactly one update per rollout"],
        confidence="partly",
        uncertain="the constants of η and γ, which are from memory",
        notes=[
            "On a small grid it shows no gain over reinforce with Adam, three seeds each (docs/control.md).",
            in_the_update("those of REINFORCE, at the weights ahead"),
            "With power 0 it is normalised REINFORCE: each step is along its own gradient.",
            "optim.lr is the distance that all weights together move at first: 0.1 to 1 for small policies.",
        ],
        source="the abstract, and what is generally known of the paper",
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
