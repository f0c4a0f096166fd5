"""REINFORCE towards a given return, near an earlier policy (COUNTERPOL)."""

from __future__ import annotations

from grouprl.algorithms.advantage_transform.papers.toward_return import TowardReturn
from grouprl.algorithms.method import Method
from grouprl.algorithms.regularize.iterates import KLIterates
from grouprl.core.numbers import Count, NonNegative
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry


def counterpol(base: Method, target: float = 0.0, coef: NonNegative = 0.01, every: Count = 10) -> Method:
    """Compose COUNTERPOL: descend on (J - target)² with a KL to a pivot, which becomes the policy now and then."""
    return base.with_parts(
        advantage_transform=(TowardReturn(target=target),),
        regularize=(KLIterates(coef=coef, every=every, estimator="k2"),) if coef > 0 else (),
    )


entry(
    "counterpol",
    counterpol,
    Card(
        title="COUNTERPOL",
        papers=[Paper("Counterfactual Explanation Policies in RL", year=2023)],
        summary="Find a policy with a given mean return that is near the present one.",
        formula=(
            "L = -1/B Σ_i Σ_t 2·(R* - J_{-i})·(R_i - b)·log π(a_t) + k·½·(log π(a_t) - log π_pivot(a_t))²,  J_{-i} the "
            "mean return of the other rows;  every n steps π_pivot ← π"
        ),
        defaults={
            "target": "R*, the question's own: set it; 0 asks for a policy that earns nothing, which learns to fail "
            "where rewards are 0 or above",
            "coef": "k, our choice: 0.01",
            "every": "n, our choice: 10 steps; more than the run has keep the first policy as pivot",
        },
        differs=[
            "J is the mean of the other rows, so that its product with a row's gradient is unbiased; the paper takes "
            "that of all rows.",
            "The KL is that of the actions taken, in the direction KL(π || π_pivot).",
        ],
        reduces=[
            Reduction(
                "reinforce",
                settings={"target": 1e6, "coef": 0.0},
                scale=None,
                why="a target that no return comes near: every row has the weight 2·R*, and the climb never ends",
            ),
        ],
        needs=["at least two rows per step", "exactly one update per rollout"],
        confidence="partly",
        uncertain="the paper's weights and the period of the pivot",
        notes=[
            "Told a mean of 0.7 on three arms it ends at 0.69 to 0.70, reinforce on squares at 0.60 (docs/control.md).",
            "A policy that tilts the pivot by exp(λ·R) is the nearest of its return, where an episode is one action.",
            "At the target it still moves by chance: the weight is 0 in the mean only.",
        ],
        source="the abstract and summaries of the paper",
        golden=[
            Golden(
                rewards=[1, 0],
                settings={"baseline": "group", "target": 0.25},
                fields={"refs.iterates": [[-1.0], [-1.0]]},
                advantage=[0.25, 0.75],
                loss=0.5,
                grad=[[-0.125], [-0.375]],
                why="0.5·2·(0.25 - 0) and -0.5·2·(0.25 - 1): as the other row is above the target, worse is better",
            ),
        ],
    ),
    base="reinforce",
    keeps=("baseline",),
)
