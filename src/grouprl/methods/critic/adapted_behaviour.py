"""PPO on the rows of several rollouts, which a second policy samples so that together they look on-policy (PROPS)."""

from __future__ import annotations

from grouprl.algorithms.buffer.recent import RecentRows
from grouprl.algorithms.method import Method
from grouprl.algorithms.update.papers.adapted_behaviour import AdaptedBehaviour
from grouprl.core.numbers import Count, NonNegative, Positive
from grouprl.methods.card import Card, Paper, Reduction
from grouprl.methods.critic.control import CLIPPED
from grouprl.methods.registry import entry
from grouprl.methods.settings import in_the_update

AUTHORS = "the authors' code"


def props(
    base: Method,
    size: Count,
    batches: Count = 2,
    bound: Positive = 0.3,
    behaviour_lr: Positive = 1e-3,
    behaviour_passes: Count = 16,
    behaviour_parts: Count = 4,
    kl_limit: Positive = 0.01,
    behaviour_kl: NonNegative = 0.0,
) -> Method:
    """Compose PROPS: PPO for control on the last rollouts, sampled by a policy that fills in what they lack."""
    update = AdaptedBehaviour(
        size=size,
        bound=bound,
        lr=behaviour_lr,
        passes=behaviour_passes,
        parts=behaviour_parts,
        kl_limit=kl_limit,
        kl_coef=behaviour_kl,
    )
    return base.with_parts(buffer=RecentRows(batches=batches), update=update)


entry(
    "props",
    props,
    Card(
        title="Proximal Robust On-Policy Sampling",
        papers=[
            Paper("On-Policy Policy Gradient Reinforcement Learning Without On-Policy Sampling", "2311.08290", 2023),
        ],
        summary="PPO for control on several rollouts, sampled by a copy that takes what these have too little of.",
        formula=(
            "θ: ppo_control on the last b rollouts, log-probs and values of θ;  then φ = θ, "
            "φ ← argmin mean max(r, clip(r, 1-ε, 1+ε)) + λ·KL(π_θ || π_φ), r = π_φ/π_θ, over the same actions until "
            "mean(r - 1 - log r) > δ;  the next rollout is of π_φ"
        ),
        defaults={
            "batches": "b; our choice: 2",
            "bound": f"ε, {AUTHORS} (discrete actions): 0.3",
            "behaviour_lr": f"{AUTHORS}: 1e-3",
            "behaviour_passes": f"{AUTHORS}: 16",
            "behaviour_parts": f"minibatches of a pass, {AUTHORS}: 4",
            "kl_limit": f"δ, {AUTHORS}: 0.01",
            "behaviour_kl": f"λ, {AUTHORS} (discrete actions): 0",
        },
        differs=[
            "The sampling policy is adapted once a rollout, the authors' every 16 steps of the environment.",
            "Its optimiser is new for each rollout.",
            "Evaluations and checkpoints between two steps are of φ; the run ends with θ.",
            "Where policy and critic share layers, values of a rollout are read with those of φ.",
        ],
        reduces=[
            Reduction("ppo_control", why="the loss is ppo_control's; who samples is in the update"),
        ],
        needs=["a critic (value head)", "a policy over arrays (model: mlp)"],
        notes=[
            "On CartPole it is ahead of ppo_control, but not of ppo_control with recent_rows alone, three seeds each "
            "(docs/control.md).",
            in_the_update("those of ppo_control"),
            "With behaviour_lr near 0 it is PPO with a buffer and no correction.",
        ],
        source="the authors' ppo_discrete.py",
        golden=[CLIPPED],
        recommended={"epochs": 10},
    ),
    base="ppo_control",
)
