"""PPO of one agent against a frozen team, paid for leading the others where it wants them (AMI)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage_transform.papers.next_advantage import NextAdvantage
from grouprl.algorithms.filter.papers.excluded import DropAgent
from grouprl.algorithms.method import Method
from grouprl.algorithms.reward_transform.papers.minority_influence import MinorityInfluence
from grouprl.core.numbers import Count, NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import in_the_update


def ami(
    base: Method,
    influence: NonNegative = 0.1,
    members: Annotated[int, Field(ge=2, le=1000)] = 2,
    adversary: Annotated[int, Field(ge=0)] = 0,
    predictor_lr: Positive = 1e-3,
    predictor_steps: Count = 20,
    predictor_width: Count = 64,
) -> Method:
    """Compose AMI: PPO for the adversary and the one that names targets; the rest of the team is not trained."""
    led = MinorityInfluence(
        coef=influence,
        members=members,
        adversary=adversary,
        lr=predictor_lr,
        steps=predictor_steps,
        width=predictor_width,
    )
    return base.with_parts(
        reward_transform=(*base.reward_transform, led),
        filter=(*base.filter, *(DropAgent(agent=victim) for victim in led.victims())),
        advantage_transform=(NextAdvantage(first=members), *base.advantage_transform),
    )


entry(
    "ami",
    ami,
    Card(
        title="Adversarial minority influence",
        papers=[
            Paper(
                "Attacking Cooperative Multi-Agent Reinforcement Learning by Adversarial Minority Influence",
                "2302.03322",
                2023,
            )
        ],
        summary="An attack on a team: one of its agents learns by PPO what makes the frozen others fail.",
        formula=(
            "r_t = -r_team - c·Σ_i |p_i,{t+1} - 1[a_i]|₁,  p_i the predicted next action of victim i whatever the "
            "adversary does, a_i the target that a second policy names;  then ippo's loss for the adversary and for "
            "the one that names targets, whose A_t is A_{t+1}"
        ),
        defaults={
            "influence": "a coefficient for each map in the authors' code: 0.1 is our choice",
            "members": "our choice: two agents",
            "adversary": "the first agent",
            "predictor_lr": "our choice: 1e-3",
            "predictor_steps": "our choice: 20 steps on all rounds of a rollout",
            "predictor_width": "our choice: two layers of 64",
        },
        differs=[
            "The prediction leaves the adversary's action out, the authors' reads it and averages over ten draws.",
            "Who names a target sees what its victim sees and all actions of the round; the authors' sees the state.",
            "Rewards are not standardised, advantages are whitened.",
            "One critic judges the adversary and the one that names targets, by what each sees; the authors have two.",
        ],
        reduces=[
            Reduction(
                "ippo",
                ["one_agent"],
                settings={"influence": 0.0},
                why="without victims it is PPO of one agent for the negative reward of a team",
            )
        ],
        needs=[
            "a critic (value head)",
            "an infiltrated world (grouprl.envs.builtin.jury:infiltrated makes one)",
            "a policy whose team is frozen (model: saboteur)",
        ],
        notes=[
            "The sum over victims is 2·Σ_i (1 - p_i[a_i]): the authors' L1 metric and their selectprob differ by a "
            "constant and a factor.",
            in_the_update("those of whole sequences"),
        ],
        source="DIG-Beihang/AMI ami_smac/src/learners/ppo_ami_learner.py, ami_mujoco/algorithms/ami_trainer.py",
        golden=[
            Golden(
                rewards=[-1, 1, -1],
                lengths=[2, 2, 2],
                groups=[0, 1, 2],
                fields={
                    "agent_b": [0, 1, 2],
                    "value_bt": [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]],
                    "turn_bt": [[0, 1], [0, 1], [0, 1]],
                    "turn_reward_bs": [[0.0, -1.0], [0.0, 1.0], [0.0, -1.0]],
                    "entropy_bt": [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]],
                    "stats.missed": [[0.5, 0.0], [0.0, 0.0], [0.5, 0.0]],
                },
                settings={"influence": 1.0, "whiten": False, "gamma": 1.0, "lam": 1.0, "entropy_coef": 0.0},
                advantage=[[-1.5, -1.0], [0.0, 0.0], [-1.0, 0.0]],
                loss=0.875,
                grad=[[0.375, 0.25], [0.0, 0.0], [0.25, 0.0]],
                why="-1 - 0.5 and -1 of the adversary; the victim has no loss; the target of the first round is judged "
                "by the second; mean of four actions",
            )
        ],
        recommended={"epochs": 4},
    ),
    base="ippo",
)
