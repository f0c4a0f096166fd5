"""GRPO under a limit of costs."""

from __future__ import annotations

from grouprl.algorithms.advantage.papers.constrained import Lagrangian
from grouprl.algorithms.method import Method
from grouprl.core.levels import Scale
from grouprl.core.numbers import NonNegative
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS

CAL = "ZifanWu/CAL, arguments.py"


def constrained_grpo(
    base: Method,
    eps: NonNegative,
    cost: str = "#cost",
    limit: float = 0.0,
    multiplier: NonNegative = 0.6931,
    rate: NonNegative = 0.05,
    augmented: NonNegative = 10.0,
    scale: Scale = "none",
) -> Method:
    """Compose GRPO's clipped loss on the advantages of an augmented Lagrangian."""
    return base.with_parts(
        advantage=Lagrangian(
            cost=cost, limit=limit, multiplier=multiplier, rate=rate, augmented=augmented, scale=scale, eps=eps
        )
    )


entry(
    "constrained_grpo",
    constrained_grpo,
    Card(
        title="GRPO with a cost limit (the multiplier of CAL)",
        papers=[Paper("Off-Policy Primal-Dual Safe Reinforcement Learning", "2401.14758", 2024)],
        summary="Maximise the reward while the mean cost stays below a limit, by a multiplier that follows the excess.",
        formula=(
            "A_i = (A_i^r - λ'·A_i^c)/(1 + λ'),  A^x = x_i - mean_g x,  λ' = max(0, λ + c·(C - d)),  "
            "λ ← max(0, λ + η·(C - d)) after each step;  C the step's mean cost, d its limit;  then GRPO's clipped loss"
        ),
        defaults={
            "cost": "what environments of control add up from info['cost']",
            "limit": "the task's: no cost at all",
            "multiplier": f"{CAL}: 0.6931",
            "rate": "ours; CAL moves log λ by Adam with 3e-4, ten times per action",
            "augmented": f"{CAL}: c = 10, for costs near 25; costs of another size need another",
            "scale": "none: a deviation for each channel would make the multiplier λ·σ_r/σ_c, another in each group",
        },
        differs=[
            "The paper trains SAC off-policy and weighs the upper bound of an ensemble of cost critics; here the costs "
            "are those of the sampled episodes, relative to their group. This form is ours.",
            "A group whose members all cost the same has no gradient of the constraint, even if all violate it.",
        ],
        reduces=[
            Reduction(
                "grpo",
                ["no_penalty"],
                other={"scale": "none"},
                why="a multiplier of 0, as well inside the limit, leaves GRPO without a deviation",
            ),
        ],
        notes=[
            "augmented 0 is plain dual ascent, which overshoots: after 300 steps on three arms with a limit of 0.5 the "
            "mean cost of the last 100 was 0.58, and with augmented 1 it was 0.50."
        ],
        needs=["at least two completions per prompt", "a cost as a component of the reward (method.cost)"],
        source="ZifanWu/CAL: agent/cal.py, arguments.py",
        golden=[
            Golden(
                rewards=[1, 0],
                fields={"rewards.#cost": [3.0, 1.0], "past.multiplier": [0.25, 0.25]},
                advantage=[0.2, -0.2],
                loss=0.0,
                grad=[[-0.1], [0.1]],
                why="A_r = ±0.5, A_c = ±1: (0.5 - 0.25·1)/1.25 = 0.2",
            ),
            Golden(
                rewards=[1, 0],
                fields={"rewards.#cost": [3.0, 1.0], "past.multiplier": [3.0, 3.0]},
                advantage=[-0.625, 0.625],
                grad=[[0.3125], [-0.3125]],
                why="(0.5 - 3)/4: the dear one loses although it earns more",
            ),
        ],
    ),
    base="grpo",
    keeps=(*CLIPS, "eps"),
)
