"""Policies of several agents that stay near themselves by penalties in place of a clip."""

from __future__ import annotations

from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.importance import Importance
from grouprl.algorithms.regularize.papers.root_kl import RootKL
from grouprl.algorithms.update.papers.adapted_penalties import AdaptedPenalties
from grouprl.core.numbers import Count, NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import in_the_update

CODE = "PKU-RL/DPO, r_mappo.py and config.py"


def dec_dpo(base: Method, size: Count, target: Positive = 0.01, start: NonNegative = 1.0) -> Method:
    """Compose decentralised policy optimisation: no clip, two penalties with weights of their own."""
    return base.with_parts(
        objective=Importance(),
        regularize=(*base.regularize, RootKL()),
        update=AdaptedPenalties(size=size, target=target, start=start),
    )


entry(
    "dec_dpo",
    dec_dpo,
    Card(
        title="Decentralized Policy Optimization",
        papers=[Paper("Decentralized Policy Optimization", "2211.03032", 2022)],
        summary="Agents that learn apart stay near their old policies by the root of the KL and the KL, not by a clip.",
        formula=(
            "L = mean over agents and actions of -ρ·A + β₁·√k + β₂·k + c·value loss,  k = ρ - 1 - log ρ ≈ "
            "KL(π_old || π);  after a rollout β₂ follows k to a target d, β₁ follows √k to √d: half below 2/3 of it, "
            "twice above 1.5 of it"
        ),
        defaults={
            "target": f"{CODE}: 0.01; the authors' command has 0.02",
            "start": f"{CODE}: 1",
            "entropy_coef": "off here",
        },
        differs=[
            "The paper has the KL over all actions of a state; here k is that of the action taken, with the same mean. "
            "The mean of its root is smaller than the root of its mean.",
            "Weights are shared by all agents, as in the authors' defaults; idv_beta (one for each) is not there.",
            "The root that moves β₁ is that of the mean KL of the last optimiser step.",
            "Advantages are whitened with the sample variance, the code's with the population's.",
            "The loss of values is the square; the code has Huber's, and PopArt.",
        ],
        reduces=[
            Reduction(
                "ppo_control",
                ["no_penalty", "on_policy"],
                why="with both weights 0 nothing is left but ρ·A, which a clip leaves alone where ρ is 1",
            ),
        ],
        needs=["a critic (value head)", "a policy over arrays (model: mlp)"],
        notes=[
            in_the_update("those of whole sequences, with the weights that rows state"),
            "In a small grid of colours it does not beat ippo: 5.03 [3.73, 6.33] to 5.83 [5.40, 6.27], four seeds each "
            "(docs/teams.md).",
            "A large β₁ freezes the policy: the slope of the root does not vanish with the move.",
        ],
        source=CODE,
        golden=[
            Golden(
                rewards=[1],
                log_ratio=[[0.4054651081081644]],
                fields={
                    "value_bt": [[0.5]],
                    "turn_bt": [[0]],
                    "turn_reward_bs": [[1.0]],
                    "past.root_weight": [1.0],
                    "past.kl_weight": [2.0],
                },
                settings={"whiten": False},
                advantage=[[0.5]],
                loss=-0.75 + 0.3074652694 + 2 * 0.0945348919,
                grad=[[-0.75 + 0.25 / 0.3074652694 + 1.0]],
                why="ρ = 1.5: k = 0.5 - log 1.5 = 0.0945, its root 0.3075; dk/dlog ρ = 0.5, of the root 0.5/(2·0.3075)",
                tolerance=1e-5,
            ),
        ],
        recommended={"epochs": 10},
    ),
    base="ppo_control",
    keeps=("gamma", "lam", "size", "whiten", "value_coef", "value_clip", "entropy_coef"),
)
