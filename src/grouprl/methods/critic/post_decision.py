"""PPO for control with a second critic, of the state after a decision and before chance (PDPPO)."""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.advantage_transform.papers.post_decision import PostDecision
from grouprl.algorithms.method import Method
from grouprl.core.numbers import Count, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import in_the_update


def pdppo(
    base: Method,
    after: str = "",
    combine: Literal["max", "mean", "after"] = "max",
    post_lr: Positive = 1e-3,
    post_steps: Count = 40,
    post_width: Count = 64,
) -> Method:
    """Compose PDPPO: PPO for control whose advantage is the larger of those against two critics."""
    second = PostDecision(after=after, combine=combine, lr=post_lr, steps=post_steps, width=post_width)
    return base.with_parts(advantage_transform=(second, *base.advantage_transform))


entry(
    "pdppo",
    pdppo,
    Card(
        title="Post-decision PPO with two critics",
        papers=[
            Paper(
                "A Reinforcement Learning Method for Environments with Stochastic Variables: Post-Decision Proximal "
                "Policy Optimization with Dual Critic Networks",
                "2504.05150",
                2025,
            ),
        ],
        summary="PPO for control with a second critic, of the state between a decision and the chance after it.",
        formula=(
            "A_t = max(G_t - V(s_t), G_t - Vˣ(sˣ_t)), then ppo_control's loss;  sˣ_t = after(s_t, a_t),  "
            "L_x = mean ½·(Vˣ(sˣ) - G)² by an Adam of its own"
        ),
        defaults={
            "after": "none: the environment's function is yours to name",
            "combine": "max, as in the paper",
            "post_lr": "our choice: 1e-3",
            "post_steps": "our choice: 40 steps on all actions of a rollout",
            "post_width": "our choice: two layers of 64",
        },
        differs=[
            "The state after the decision comes from a function of observation and action, not from the environment.",
            "Advantages are whitened after the maximum; the summary does not say.",
        ],
        reduces=[
            Reduction("ppo_control", ["same_values"], why="both advantages are the same, so the larger is either")
        ],
        needs=[
            "a critic (value head)",
            "a policy over arrays (model: mlp)",
            "a function that returns the state after a decision (method.after)",
        ],
        confidence="partly",
        uncertain="everything but the maximum and the separate optimisers; only a summary was read",
        notes=[
            "In a small store it is behind ppo_control, and level with it with combine mean, three seeds each "
            "(docs/control.md).",
            "The larger of two estimates with noise is too large: two of mean 0 and deviation ½ have a maximum of mean "
            "0.28. Whitening takes the common part out again.",
            "Where Vˣ is exact, G - Vˣ has mean 0 whatever the action: combine after teaches nothing in expectation.",
            in_the_update("PPO with the larger advantage"),
        ],
        source="a summary of the paper",
        golden=[
            Golden(
                rewards=[1, 0],
                groups=[0, 1],
                fields={
                    "value_bt": [[0.5], [0.25]],
                    "turn_bt": [[0], [0]],
                    "turn_reward_bs": [[1.0], [0.0]],
                    "stats.post_value": [[0.75], [-0.5]],
                },
                settings={"whiten": False},
                advantage=[0.5, 0.5],
                loss=-0.5,
                grad=[[-0.25], [-0.25]],
                why="1 - 0.5 > 1 - 0.75; 0 - 0.25 < 0 + 0.5",
            ),
        ],
        recommended={"epochs": 10},
    ),
    base="ppo_control",
)
