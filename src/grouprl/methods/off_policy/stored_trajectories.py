"""Learning from stored trajectories: cloning of those that are drawn by their returns."""

from __future__ import annotations

from grouprl.algorithms.curriculum.papers.stored_returns import Against, StoredReturns
from grouprl.algorithms.method import Method
from grouprl.core.numbers import Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry


def weighted_bc(base: Method, temperature: Positive = 0.1, against: Against = "beginning") -> Method:
    """Compose behaviour cloning of stored trajectories that are drawn by their returns."""
    return base.with_parts(curriculum=StoredReturns(temperature=temperature, against=against))


entry(
    "weighted_bc",
    weighted_bc,
    Card(
        title="Behaviour cloning of trajectories drawn by their returns (AW and RW)",
        papers=[
            Paper(
                "Harnessing Mixed Offline Reinforcement Learning Datasets via Trajectory Weighting", "2306.13085", 2023
            )
        ],
        summary="Clone stored trajectories, which are drawn the more often the more they earned.",
        formula=(
            "p_i ∝ exp(x_i/α),  x_i = (Ĝ_i - min Ĝ)/(max Ĝ - min Ĝ),  Ĝ_i = G_i - V(s_0), V a linear regression of G "
            "on s_0 (AW; RW: Ĝ = G);  L = -1/Σ|y_i| Σ_i Σ_t log π(a_t|s_t)"
        ),
        defaults={
            "temperature": "Improbable-AI/harness-offline-rl, d3rlpy_examples: 0.1 (its CQL and IQL benchmark has 0.2)",
            "against": "the paper prefers AW where episodes begin in different states",
        },
        differs=[
            "Trajectories are drawn whole, where the paper draws single transitions; with a mean over the actions of a "
            "step both weigh an action by exp(x_i/α).",
            "The paper weighs the data of CQL, IQL and TD3+BC as well as cloning; here it is cloning alone.",
        ],
        notes=[
            "The code of the paper's d3rlpy example normalises returns and then takes a softmax of the raw ones; here "
            "it is the formula of its README.",
            "The gain is bounded by the positive-sided variance of the returns, which `grouprl plan` says.",
        ],
        reduces=[
            Reduction("sft", ["always"], why="the loss is that of cloning; only the choice of trajectories differs")
        ],
        needs=["stored trajectories with their rewards, one per prompt (task: trajectories:FILE)"],
        source="Improbable-AI/harness-offline-rl d3rlpy_examples/weighted_datasets.py, README",
        golden=[
            Golden(
                rewards=[3, 0],
                lengths=[2, 1],
                groups=[0, 1],
                log_ratio=[[0.5, 0.0], [-1.0]],
                advantage=[1.0, 1.0],
                loss=3.5 / 3,
                grad=[[-1 / 3] * 2, [-1 / 3]],
                why="log-probs -0.5, -1 and -2, whatever the returns",
            )
        ],
    ),
    base="sft",
)
