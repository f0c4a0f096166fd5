"""Generative flow networks: rows are sampled in proportion to their reward, not at its maximum."""

from __future__ import annotations

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.papers.vargrad import VarGrad
from grouprl.core.numbers import Positive
from grouprl.methods.card import Card, Golden, Paper
from grouprl.methods.registry import entry


def vargrad(coef: Positive = 1.0) -> Method:
    """Compose VarGrad: the reward of a row is log R(x), and log P_B of its trajectory where that is not 0."""
    return Method(
        advantage=Relative("group", center="mean", scale="none"),
        objective=VarGrad(coef=coef),
        aggregate=SequenceMean(),
    )


entry(
    "vargrad",
    vargrad,
    Card(
        title="Robust Scheduling with GFlowNets",
        papers=[
            Paper("Robust Scheduling with GFlowNets", "2302.05446", 2023),
            Paper("VarGrad: A Low-Variance Gradient Estimator for Variational Inference", "2010.10436", 2020),
            Paper("Trajectory balance: Improved credit assignment in GFlowNets", "2201.13259", 2022),
        ],
        summary="Sample in proportion to the reward: log-probs differ in a group as log rewards do.",
        formula="L = mean_i (d_i - mean_g d)²,  d_i = Σ_t log π(y_i,t) - R_i,  R_i = log R(x_i) + Σ_t log P_B",
        defaults={"coef": "the papers: 1"},
        differs=[
            "Trajectory balance learns log Z; here the group's mean stands for it.",
            "Backward probabilities are the environment's to pay, as part of the reward; they are not learned.",
        ],
        needs=["at least two completions per prompt", "rewards that are logarithms: log R(x)"],
        source="GFNOrg/torchgfn: gfn/gflownet/trajectory_balance.py (LogPartitionVarianceGFlowNet)",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 2],
                log_ratio=[[0.3], [-0.5, 0.1]],
                advantage=[0.5, -0.5],
                loss=0.1225,
                grad=[[0.35], [-0.35, -0.35]],
                why="old log-probs are -1: Σ log π = -0.7 and -2.4, less A: -1.2 and -1.9, centred ±0.35",
            ),
        ],
        recommended={"learning_rate": 1e-3},
    ),
)
