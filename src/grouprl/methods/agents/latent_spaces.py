"""PPO of a team whose shared encoder also learns by what it foresees in its latent space (MAPO-LSO)."""

from __future__ import annotations

from grouprl.algorithms.method import Method
from grouprl.algorithms.regularize.papers.latent_space import SelfPrediction, TeamDynamics
from grouprl.core.numbers import NonNegative
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry


def mapo_lso(base: Method, dynamics: NonNegative = 1.0, prediction: NonNegative = 1.0) -> Method:
    """Compose MAPO-LSO: PPO of a team on whole rows, with losses of what the team and each agent foresee."""
    terms = (TeamDynamics(coef=dynamics), SelfPrediction(coef=prediction))
    return base.with_parts(regularize=(*base.regularize, *(term for term in terms if term.coef)), update=None)


entry(
    "mapo_lso",
    mapo_lso,
    Card(
        title="Multi-agent policy optimisation with latent-space optimisation",
        papers=[
            Paper("Representation Learning For Efficient Deep Multi-Agent Reinforcement Learning", "2406.02890", 2024),
            Paper("Bootstrap your own latent: A new approach to self-supervised Learning", "2006.07733", 2020),
        ],
        summary="PPO of a team whose encoder also learns to foresee the team's next latents, rewards and observations.",
        formula=(
            "L = ippo's + w₁·mean[|ẑ_{t+1} - z⁻_{t+1}|² + (r′_t - r_t)² + |ô_t - o_t|²] + w₂·mean_j (2 - "
            "2·cos(z′_{t+j}, z⁻_{t+j})),  ẑ, r′ from the team's latents and actions, ô from the others' latents, z′ "
            "from an agent's own, z⁻ by a moving average of the encoder, without a gradient"
        ),
        defaults={
            "dynamics": "w₁, not in the abstract: 1 is our choice",
            "prediction": "w₂, not in the abstract: 1 is our choice",
            "entropy_coef": "0.01, as in ippo",
        },
        differs=[
            "Only the abstract was read: it names the two kinds of losses. Their form, the heads, and that others "
            "enter as a mean are ours. By a summary the paper's latents are recurrent, masks belong to "
            "self-prediction, and actions are foreseen too.",
            "Each agent is masked once, in its own row, and its observation read from all others that act.",
            "What follows the last action of a row is not foreseen, and its reward without the others' actions, which "
            "no row shows.",
            "The moving average moves once after each rollout.",
            "Optimiser steps take whole rows (batch.minibatches), where ippo takes single actions.",
        ],
        reduces=[
            Reduction(
                "ippo",
                settings={"dynamics": 0.0, "prediction": 0.0},
                why="without foresight it is PPO of each agent; the policy's critic sees the team",
            )
        ],
        needs=[
            "a critic (value head)",
            "a policy that foresees its team (model: latent_team)",
            "a world that shows agents their team (task.config.team of squads:ColorGrid and Crossing)",
        ],
        notes=[
            "The losses reach the encoder, which acting, the critic and foresight share; actions are read from an "
            "agent's own observation alone.",
            "With weights of 0 nothing is left of it, and the run is that of ippo on whole rows, to the last bit.",
            "No gain over weights of 0 was found in three seeds (docs/teams.md).",
        ],
        confidence="abstract-only",
        uncertain="the weights, the architecture, how agents are masked, and how far ahead latents are foreseen",
        source="the paper's abstract, by our notes on it; the distance and the moving average are BYOL's",
        golden=[
            Golden(
                rewards=[1, 0],
                groups=[0, 1],
                fields={
                    "agent_b": [0, 1],
                    "value_bt": [[0.5], [0.25]],
                    "turn_bt": [[0], [0]],
                    "turn_reward_bs": [[1.0], [0.0]],
                    "entropy_bt": [[1.0], [1.0]],
                    "stats.latent_error": [[0.2], [0.4]],
                    "stats.masked_error": [[0.1], [0.3]],
                    "stats.foreseen_reward": [[0.5], [1.0]],
                    "stats.ahead_error": [[1.0], [0.5]],
                },
                settings={"dynamics": 0.5, "prediction": 2.0, "whiten": False, "entropy_coef": 0.0},
                advantage=[[0.5], [-0.25]],
                loss=1.9375,
                grad=[[-0.25], [0.125]],
                why="-(0.5 - 0.25)/2 + 0.5·(0.2 + 0.1 + 0.25 + 0.4 + 0.3 + 1)/2 + 2·1.5/2",
            )
        ],
        recommended={"epochs": 4},
    ),
    base="ippo",
    keeps=("clip", "gamma", "lam", "whiten", "value_coef", "value_clip", "entropy_coef", "scale_rewards"),
)
