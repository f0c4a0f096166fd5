"""REINFORCE for rewards that are functions of the whole set of visited states (SubPO)."""

from __future__ import annotations

from grouprl.algorithms.advantage.turn_credit import TurnRelative
from grouprl.algorithms.aggregate.aggregate import SequenceSum
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import PolicyGradient
from grouprl.algorithms.regularize.regularize import EntropyBonus
from grouprl.core.numbers import NonNegative
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry


def subpo(entropy_coef: NonNegative = 0.0) -> Method:
    """Compose SubPO: a step's weight is what the rest of its trajectory gains, beyond the group's mean at that step."""
    return Method(
        advantage=TurnRelative(key="turn", episode=0.0, omega=1.0, gamma=1.0),
        objective=PolicyGradient(),
        aggregate=SequenceSum(),
        regularize=(EntropyBonus(coef=entropy_coef),) if entropy_coef > 0 else (),
        on_policy=True,
    )


entry(
    "subpo",
    subpo,
    Card(
        title="Submodular Policy Optimization",
        papers=[Paper("Submodular Reinforcement Learning", "2307.13372", 2023)],
        summary="Each step is credited with what the rest of the trajectory still adds to a set function.",
        formula=(
            "L = -1/B Σ_i Σ_k log π(a_k|s_k)·(F(τ) - F(τ_{0:k}) - b_k),  F(τ) - F(τ_{0:k}) = Σ_{j≥k} g_j with the "
            "marginal gains g_j = F(τ_{0:j+1}) - F(τ_{0:j}),  b_k the mean over the group's steps of number k"
        ),
        defaults={"entropy_coef": "off; the authors' code has one that falls with the epochs"},
        differs=[
            "The baseline is the mean of the group at the same step, the step itself included: (G-1)/G of the gradient "
            "with a baseline from the others.",
            "The authors' code weighs a step by the value of the prefix, F(τ_{0:k+1}); this is the theorem.",
        ],
        reduces=[
            Reduction(
                "reinforce",
                ["one_turn"],
                other={"baseline": "group"},
                why="one step: what it gains is the reward",
            ),
        ],
        needs=[
            "exactly one update per rollout",
            "an environment that pays marginal gains (such as CoverageWalk)",
            "at least two episodes of a beginning",
        ],
        confidence="partly",
        uncertain="the theorem's formula, which was checked by numbers and not in the paper",
        notes=[
            "On a grid of 16 cells it covers all, reinforce with the group's mean 14 or 15, three seeds each.",
            "Where F adds up over states, marginal gains are rewards, and weights are returns to go.",
        ],
        source="manish-pra/non-additive-RL main.py, utils/environment.py",
        golden=[
            Golden(
                rewards=[2, 1],
                lengths=[2, 2],
                fields={"turn_bt": [[0, 1], [0, 1]], "turn_reward_bs": [[1.0, 1.0], [1.0, 0.0]]},
                advantage=[[0.5, 0.5], [-0.5, -0.5]],
                loss=0.0,
                grad=[[-0.25, -0.25], [0.25, 0.25]],
                why="rests 2, 1 and 1, 0: means 1.5 and 0.5",
            ),
        ],
    ),
)
