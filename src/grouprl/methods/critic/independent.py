"""PPO of several agents, each of which learns as if it were alone."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.method import Method
from grouprl.core.numbers import NonNegative
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import in_the_update

AUTHORS = "on-policy (MAPPO's code), of which IPPO is the setting without a shared critic"


def ippo(
    base: Method, value_clip: Annotated[float, Field(gt=0)] | None = 0.2, entropy_coef: NonNegative = 0.01
) -> Method:
    """Compose independent PPO: each agent's actions have ratios, returns and a clip of their own."""
    return base


entry(
    "ippo",
    ippo,
    Card(
        title="Independent PPO",
        papers=[
            Paper("Is Independent Learning All You Need in the StarCraft Multi-Agent Challenge?", "2011.09533", 2020)
        ],
        summary="The baseline of teams: every agent learns by PPO from what it sees, one policy plays them all.",
        formula=(
            "L = -mean over agents m and actions of min(ρ^m A^m, clip(ρ^m, 1-ε, 1+ε) A^m) + "
            "c·½·max((V - G)², (V_clipped - G)²) - c_H·H,  ρ^m = π(a^m|o^m)/π_old(a^m|o^m), A^m by GAE on agent m's row"
        ),
        defaults={
            "clip": "0.2, the paper",
            "value_clip": f"0.2, as the policy's: {AUTHORS}",
            "entropy_coef": f"0.01: {AUTHORS}",
        },
        differs=[
            "Optimiser steps take `size` actions of all agents, where the authors take all of a rollout at once.",
            "An agent's last action is not among what it observes; its number is.",
        ],
        reduces=[
            Reduction(
                "ppo_control",
                settings={"value_clip": None, "entropy_coef": 0.0},
                why="one agent alone: nothing of the loss knows of others",
            ),
        ],
        needs=["a critic (value head)", "a policy over arrays (model: mlp)"],
        notes=[
            in_the_update("those of whole sequences"),
            "The joint ratio is the product of the agents': with N of them it may leave (1±ε) by the N-th power. With "
            "many agents take a smaller clip.",
            "Agents that choose at once, each by itself, end at pairs that neither leaves alone (docs/teams.md).",
        ],
        source="arXiv:2011.09533; the loss as in the authors' successors' code (r_mappo.py, read in PKU-RL/DPO)",
        golden=[
            Golden(
                rewards=[1, 1],
                fields={
                    "agent_b": [0, 1],
                    "value_bt": [[0.5], [0.25]],
                    "turn_bt": [[0], [0]],
                    "turn_reward_bs": [[1.0], [1.0]],
                    "entropy_bt": [[1.0], [1.0]],
                },
                settings={"whiten": False, "entropy_coef": 0.0},
                log_ratio=[[0.4054651081081644], [0.0]],
                advantage=[[0.5], [0.75]],
                loss=-0.675,
                grad=[[0.0], [-0.375]],
                why="ρ = 1.5 of the first agent is clipped at 1.2, that of the second, 1, is not: (1.2·0.5 + 0.75)/2",
            ),
        ],
        recommended={"epochs": 10},
    ),
    base="ppo_control",
)
