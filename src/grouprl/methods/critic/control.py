"""PPO for control: rewards on their actions, limits bootstrapped, optimiser steps on shuffled actions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage.returns import GAE
from grouprl.algorithms.advantage_transform.advantage_transform import Whiten
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.augment.return_scale import ReturnScale
from grouprl.algorithms.critic.critic import ValueLoss
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import Clipped
from grouprl.algorithms.regularize.regularize import EntropyBonus
from grouprl.algorithms.reward_transform.papers.scaled_rewards import ScaledRewards
from grouprl.algorithms.reward_transform.turn_ends import RewardAtTurnEnd
from grouprl.algorithms.update.transitions import Transitions
from grouprl.core.numbers import Count, NonNegative, Positive, Share
from grouprl.methods.card import Card, Golden, Paper
from grouprl.methods.critic.critic import GAE_PAPER
from grouprl.methods.registry import entry
from grouprl.methods.settings import PPO_PAPER, in_the_update

DETAILS = Paper("What Matters in On-Policy Reinforcement Learning? A Large-Scale Empirical Study", "2006.05990", 2020)

CLIPPED = Golden(
    rewards=[1],
    log_ratio=[[0.4054651081081644]],
    fields={"value_bt": [[0.5]], "turn_bt": [[0]], "turn_reward_bs": [[1.0]]},
    settings={"whiten": False},
    advantage=[[0.5]],
    loss=-0.6,
    grad=[[0.0]],
    why="ρ = 1.5 is clipped at 1.2: -1.2·0.5",
)
"""A single action whose ratio is clipped, for methods that update as PPO for control does."""


def ppo_control(
    clip: Positive = 0.2,
    gamma: Share = 0.99,
    lam: Share = 0.95,
    size: Count = 64,
    whiten: bool = True,
    value_coef: NonNegative = 1.0,
    value_clip: Annotated[float, Field(gt=0)] | None = None,
    entropy_coef: NonNegative = 0.0,
    scale_rewards: bool = False,
) -> Method:
    """Compose PPO for control: each action has its own reward, and an optimiser step is `size` actions of any rows."""
    return Method(
        augment=(ReturnScale(gamma=gamma),) if scale_rewards else (),
        reward_transform=(*((ScaledRewards(),) if scale_rewards else ()), RewardAtTurnEnd()),
        advantage=GAE(gamma=gamma, lam=lam),
        advantage_transform=(Whiten(key="batch", count="token", variance="sample"),) if whiten else (),
        objective=Clipped(clip_low=clip, clip_high=clip),
        aggregate=TokenMean(),
        regularize=(EntropyBonus(coef=entropy_coef),) if entropy_coef > 0 else (),
        critic=ValueLoss(lam=lam, gamma=gamma, clip=value_clip, coef=value_coef),
        update=Transitions(size=size),
    )


entry(
    "ppo_control",
    ppo_control,
    Card(
        title="Proximal Policy Optimization for control",
        papers=[PPO_PAPER, GAE_PAPER, DETAILS],
        summary="PPO as for control: rewards where they are earned, limits bootstrapped, shuffled actions.",
        formula=(
            "L = -1/M Σ_m min(ρ_m A_m, clip(ρ_m, 1-ε, 1+ε) A_m) + c·½·(V_m - G_m)² - c_H·H_m over M shuffled actions,  "
            "A_t = δ_t + γλA_{t+1},  δ_t = r_t + γV_{t+1} - V_t,  V after a limit = V(last observation)"
        ),
        defaults={
            "clip": "the paper, table 3: 0.2",
            "gamma": "the paper: 0.99",
            "lam": "the paper: 0.95",
            "size": "the paper's minibatch: 64",
            "whiten": "on, as in Stable-Baselines3 and CleanRL",
            "value_coef": "1 on half the squared error: Stable-Baselines3's vf_coef 0.5 on the whole",
            "value_clip": "off, as in Stable-Baselines3",
            "entropy_coef": "off; the paper has 0 to 0.01",
            "scale_rewards": "off; VecNormalize's norm_reward in Stable-Baselines3",
        },
        differs=[
            "Advantages are whitened once over the rollout; Stable-Baselines3 and CleanRL whiten each minibatch.",
            "The last, smaller minibatch of a pass is spread over the others.",
        ],
        needs=["a critic (value head)", "a policy over arrays (model: mlp)"],
        notes=[in_the_update("those of whole sequences")],
        source="the paper, algorithm 1; settings of Stable-Baselines3 2.9",
        golden=[
            Golden(
                rewards=[1],
                lengths=[2],
                fields={"value_bt": [[0.5, 0.5]], "turn_bt": [[0, 1]], "turn_reward_bs": [[0.25, 0.75]]},
                settings={"whiten": False, "gamma": 0.5, "lam": 0.5},
                advantage=[[0.0625, 0.25]],
                loss=-0.15625,
                grad=[[-0.03125, -0.125]],
                why="δ = 0.25 + 0.25 - 0.5 = 0 and 0.75 - 0.5 = 0.25; A_1 = 0 + 0.25·0.25; mean of two actions",
            ),
        ],
        recommended={"epochs": 10, "learning_rate": 3e-4},
    ),
)
