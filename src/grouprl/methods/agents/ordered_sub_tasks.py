"""Values of the next sub-task, by which a planner orders the work of a frozen solver (RLAP)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage.best_next import BestNext
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.buffer.group_replay import RolloutReplay
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.fitted_values import FittedValues
from grouprl.algorithms.reward_transform.turn_ends import RewardAtTurnEnd
from grouprl.algorithms.update.followed_values import FollowedValues
from grouprl.core.numbers import Count, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import in_the_update


def rlap(
    gamma: Share = 1.0,
    fresh_share: Share = 0.5,
    capacity: Count = 2000,
    follow: Count = 4,
    explore: Share = 1.0,
    explore_last: Share = 0.05,
    explore_steps: Annotated[int, Field(ge=0)] = 50,
) -> Method:
    """Compose RLAP's planner: Q-learning on new and replayed episodes, with a follower for targets."""
    return Method(
        reward_transform=(RewardAtTurnEnd(),),
        advantage=BestNext(gamma=gamma),
        objective=FittedValues(),
        aggregate=TokenMean(),
        buffer=RolloutReplay(fresh_share=fresh_share, capacity=capacity, mixed_only=False, first_epoch=False)
        if fresh_share < 1
        else None,
        update=FollowedValues(every=follow, explore=explore, explore_last=explore_last, explore_steps=explore_steps),
    )


entry(
    "rlap",
    rlap,
    Card(
        title="RLAP: sub-tasks ordered by learned values before a frozen solver",
        papers=[
            Paper(
                "RLAP: A Reinforcement Learning Enhanced Adaptive Planning Framework for Multi-step NLP Task Solving",
                "2505.11893",
                2025,
            ),
        ],
        summary="A small value learner chooses the next sub-task; a frozen solver does it and its result is told.",
        formula=(
            "L = mean ½·(Q(s_t, a_t) - y_t)²,  y_t = r_t + γ·max_a Q⁻(s_{t+1}, a),  "
            "s_t = input and results so far,  a_t = the next sub-task"
        ),
        defaults={
            "gamma": "our choice: 1, for an episode does each sub-task once",
            "fresh_share": "our choice: half of a step's episodes are new",
            "capacity": "our choice: the last 2,000 episodes are replayed from",
            "follow": "our choice: every 4 rollouts",
            "explore": "our choice: 1, as for DQN",
            "explore_last": "our choice: 0.05",
            "explore_steps": "our choice: 50 steps of the run",
        },
        differs=[
            "Texts are counts of words for a perceptron; the paper's Actor reads states and actions as language.",
            "The solver of the built-in world is a rule, not a language model; a world of yours calls one in solve().",
            "Episodes are replayed whole; DQN draws single steps.",
        ],
        reduces=[
            Reduction("gmah", other={"gamma": 1.0}, why="the same regression, of one value in place of a mixture")
        ],
        needs=[
            "a policy that acts by values (model: choice_values)",
            "a world like grouprl.envs.builtin.sub_tasks.Homes",
        ],
        notes=[
            "The solver is part of the environment and never trained.",
            in_the_update("the loss without the follower"),
        ],
        confidence="abstract-only",
        uncertain="the paper's Actor, its reward and all numbers; only the abstract was read",
        source="RLAP's abstract; Q-learning with replay and a target network (Mnih et al. 2015)",
        golden=[
            Golden(
                rewards=[1.0],
                lengths=[2],
                fields={
                    "turn_bt": [[0, 1]],
                    "turn_reward_bs": [[0.25, 0.75]],
                    "stats.best_after": [[0.5, 9.0]],
                },
                log_ratio=[[1.0, 1.0]],
                advantage=[[0.75, 0.75]],
                loss=0.28125,
                grad=[[-0.375, -0.375]],
                why="targets 0.25 + 0.5 and 0.75, at the end; values (here log-probs) are 0",
            )
        ],
        recommended={"epochs": 4, "learning_rate": 3e-3},
    ),
)
