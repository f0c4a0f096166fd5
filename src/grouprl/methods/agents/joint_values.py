"""Values of joint actions, mixed from those of the agents' own: QMIX, to hand out sub-goals (GMAH)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage.best_next import BestNext
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.buffer.recent import RecentRows
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.fitted_values import FittedValues
from grouprl.algorithms.reward_transform.turn_ends import RewardAtTurnEnd
from grouprl.algorithms.update.followed_values import FollowedValues
from grouprl.core.numbers import Count, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import in_the_update


def gmah(
    gamma: Share = 0.99,
    rollouts: Count = 8,
    follow: Count = 4,
    explore: Share = 1.0,
    explore_last: Share = 0.05,
    explore_steps: Annotated[int, Field(ge=0)] = 50,
) -> Method:
    """Compose GMAH's learner of sub-goals: QMIX on recent rollouts, with a follower for targets."""
    return Method(
        reward_transform=(RewardAtTurnEnd(),),
        advantage=BestNext(gamma=gamma),
        objective=FittedValues(),
        aggregate=TokenMean(),
        buffer=RecentRows(batches=rollouts),
        update=FollowedValues(every=follow, explore=explore, explore_last=explore_last, explore_steps=explore_steps),
    )


entry(
    "gmah",
    gmah,
    Card(
        title="Goal-based multi-agent hierarchy: sub-goals handed out by QMIX",
        papers=[
            Paper(
                "Subgoal-based Hierarchical Reinforcement Learning for Multi-Agent Collaboration", "2408.11416", 2024
            ),
            Paper(
                "QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent Reinforcement Learning",
                "1803.11485",
                2018,
            ),
        ],
        summary="A value learner: each agent takes the sub-goal that it values most, a mixer fits the team's value.",
        formula=(
            "L = mean ½·(Q_tot(s_t, a_t) - y_t)²,  y_t = r_t + γ·max_a Q⁻_tot(s_{t+1}, a),  "
            "Q_tot = |W_2|·elu(|W_1|·q + b_1) + b_2 with W, b of the state,  r_t what a sub-goal's steps earned"
        ),
        defaults={
            "gamma": "QMIX's: 0.99",
            "rollouts": "our choice: the last 8; QMIX draws from 5,000 episodes",
            "follow": "our choice: every 4 rollouts; QMIX's is every 200 episodes",
            "explore": "QMIX's: 1",
            "explore_last": "QMIX's: 0.05",
            "explore_steps": "our choice: 50 steps of the run; QMIX's is 50,000 actions",
        },
        differs=[
            "Walking to a sub-goal is the environment's: the paper learns it, from an intrinsic reward for arriving.",
            "When sub-goals are chosen anew is the environment's to say: on arrival or after a while.",
            "A choice is discounted by γ however many steps it took.",
            "Learns from all recent rollouts; QMIX draws episodes evenly from a larger store.",
            "Agents read one observation, without memory.",
        ],
        reduces=[
            Reduction(
                "rlap", settings={"gamma": 1.0}, why="the same regression: here values are mixed from the agents'"
            ),
        ],
        needs=[
            "a policy that acts by values (model: team_values)",
            "a world like grouprl.envs.joint_world.Together, or squad:MODULE with task.together",
        ],
        notes=[
            "It does not beat PPO in Hauling: with light loads it stays at these, at each rate tried (docs/teams.md).",
            "Q_tot rises with every q, so each agent's best action is part of the team's best: agents act alone.",
            "With mixer: sum it is VDN (arXiv:1706.05296), which fits no value that is more than a sum over agents.",
            in_the_update("the loss without the follower"),
        ],
        confidence="abstract-only",
        uncertain="GMAH's modified mixer, its sub-goal generator and all numbers; of it only the abstract was read",
        source="GMAH's abstract; QMIX's paper",
        golden=[
            Golden(
                rewards=[1.0],
                lengths=[2],
                fields={
                    "turn_bt": [[0, 1]],
                    "turn_reward_bs": [[0.25, 0.75]],
                    "stats.best_after": [[0.5, 9.0]],
                },
                settings={"gamma": 0.5},
                log_ratio=[[1.0, 1.0]],
                advantage=[[0.5, 0.75]],
                loss=0.203125,
                grad=[[-0.25, -0.375]],
                why="targets 0.25 + 0.5·0.5 and 0.75, at the end; values (here log-probs) are 0",
            )
        ],
        recommended={"epochs": 4, "learning_rate": 1e-3},
    ),
)
