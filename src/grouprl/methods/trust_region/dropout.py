"""PPO with sample dropout: D-PPO."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.papers.dropout import DropoutClip
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, PPO_PAPER


def d_ppo(
    base: Method,
    clip_low: float,
    clip_high: float,
    drop: Annotated[float, Field(ge=0, lt=1)] = 0.2,
    score: Literal["correlation", "magnitude"] = "correlation",
) -> Method:
    """Compose D-PPO: PPO whose clipped loss leaves out, for each sign of ρA, the share `drop` of lowest score."""
    return base.with_parts(objective=DropoutClip(drop=drop, score=score, clip_low=clip_low, clip_high=clip_high))


entry(
    "d_ppo",
    d_ppo,
    Card(
        title="D-PPO: PPO with sample dropout",
        papers=[
            Paper(
                "Dropout Strategy in Reinforcement Learning: Limiting the Surrogate Objective Variance in Policy "
                "Optimization Methods",
                "2310.20380",
                2023,
            ),
            PPO_PAPER,
        ],
        summary="PPO without the tokens that agree least with the others: they add most to the surrogate's variance.",
        formula=(
            "L = -1/|K| Σ_{t in K} min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t) + c·value loss - c_H·H,  K: of x = sg(ρA), "
            "for each sign, the share 1 - p with the largest x_t·Σ_j x_j"
        ),
        defaults={
            "drop": "a summary of the paper: about the lowest 20%",
            "score": "the reading of the paper's Δ as x·Σx; 'magnitude' takes |x| within each sign",
            "gamma": "1, as for language models everywhere (the paper plays Atari)",
            "lam": "PPO, table 3: 0.95",
            "whiten": "as in ppo: advantages whitened over all tokens of the batch",
            "value_coef": "as in ppo: c = 1 on half the squared error",
            "value_clip": "as in ppo: 0.2",
            "entropy_coef": "off, as in ppo",
        },
        differs=[
            "A sample is a token. The set is chosen anew at every update, over the tokens of the optimiser step.",
            "Equal scores stay together, so that less than the share may leave; where the signs of x balance, every "
            "score is 0 and nothing leaves.",
            "The loss of the rest is scaled up by how many of the tokens with an advantage were dropped.",
        ],
        reduces=[Reduction("ppo", settings={"drop": 0.0}, why="nothing is dropped")],
        needs=["a critic (value head)", "all rows of an optimiser step together"],
        confidence="partly",
        uncertain="The exact form of the paper's score Δ and its dropout ratio; both are settings here.",
        source="abstract and summaries of the paper",
        golden=[
            Golden(
                rewards=[1, 2, 3, 4, 5],
                fields={"value_bt": [[0.0]] * 5},
                settings={"whiten": False},
                advantage=[1.0, 2.0, 3.0, 4.0, 5.0],
                loss=-3.5,
                grad=[[0.0], [-0.5], [-0.75], [-1.0], [-1.25]],
                why="all x are positive, so the smallest agrees least: the mean is over the other four",
            ),
            Golden(
                rewards=[1, 2, 3, 4, -20],
                fields={"value_bt": [[0.0]] * 5},
                settings={"whiten": False, "drop": 0.25},
                loss=3.5,
                grad=[[-0.25], [-0.5], [-0.75], [0.0], [5.0]],
                why="Σx = -10: of the good tokens the largest agrees least; the only bad one stays; four are left",
            ),
        ],
    ),
    base="ppo",
    keeps=(*CLIPS, "gamma", "lam", "whiten", "value_coef", "value_clip", "entropy_coef"),
)
