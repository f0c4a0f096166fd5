"""Methods for agents that choose where episodes begin and where they end; the loss is GRPO's."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage_transform.papers.turn_shared import SharedPrefix
from grouprl.algorithms.augment.papers.branching import EntropyBranching
from grouprl.algorithms.method import Method
from grouprl.algorithms.sampling.papers.horizon import Horizon
from grouprl.core.numbers import Count
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import (
    CLIPS,
    GROUP,
    KL,
    KL_NEED,
    PPO_CLIP,
)

TWO = "at least two completions per prompt"
TURNS = "a task that is acted in over turns"
GRPO_LOSS = "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  A_i = (R_i - mean_g R)/(std_g R + eps)"
DEFAULTS = {
    **PPO_CLIP,
}
SAME_LOSS = Reduction("grpo", ["always"], why="the loss is GRPO's; only the episodes differ")
SHARED_PREFIX = Golden(
    rewards=[1, 0, 0],
    lengths=[2, 2, 1],
    advantage=[1.154698539, -0.577349269, -0.577349269],
    grad=[[-0.192449756] * 2, [0.096224878] * 2, [0.192449756]],
    why="(2/3)/0.577350 and -(1/3)/0.577350; every completion weighs 1/3, its tokens share that",
)


def arpo_branch(
    loss: Method,
    grow: Annotated[float, Field(gt=1)] = 2.0,
    chance: Annotated[float, Field(ge=0, le=1)] = 0.5,
    slope: float = 0.2,
    tokens: Count = 20,
    credit: Literal["soft", "hard"] = "soft",
) -> Method:
    """Compose ARPO with branching: GRPO on episodes that branch at turns of high entropy."""
    branching = EntropyBranching(grow=grow, chance=chance, slope=slope, tokens=tokens)
    return loss.with_parts(augment=(branching,), advantage_transform=(SharedPrefix(),) if credit == "hard" else ())


entry(
    "arpo_branch",
    arpo_branch,
    Card(
        title="ARPO: agentic reinforced policy optimization",
        papers=[Paper("Agentic Reinforced Policy Optimization", "2507.19849", 2025)],
        summary="GRPO on episodes that branch where an observation leaves the policy unsure.",
        formula=f"{GRPO_LOSS} over all M = grow·N episodes;  P(branch at turn k) = clip(b + w·(H_k - H_0), 0, 1)",
        defaults={
            "grow": "the paper: 16 episodes from 8 beginnings",
            "chance": "the paper: b = 0.5",
            "slope": "the paper: w = 0.2",
            "tokens": "the authors' code: 20",
            "credit": "the authors' code: soft",
            **DEFAULTS,
            "kl_coef": "off, so that no reference is needed",
        },
        differs=[
            "H is the mean entropy per token in nats; the authors sum it over the ten likeliest tokens and over "
            "tokens, and divide it by the logarithm of the vocabulary's size.",
            "With soft credit every episode is judged by itself, and shared tokens get the mean advantage of the "
            "episodes that share them because their gradients add up; hard credit gives it to them outright.",
            "Episodes from the beginning that fill a group come after all branches, not one per round.",
            "batch.group_size is the number of beginnings N; the group that is judged is grow times as large.",
            "The reward (F1, 0.1 for using two tools, -1 for bad format) is the environment's.",
        ],
        reduces=[SAME_LOSS],
        needs=[TWO, TURNS, KL_NEED],
        source="dongguanting/ARPO vllm_rollout_with_tools.py, by our notes on it",
        golden=[
            SHARED_PREFIX,
            Golden(
                rewards=[1, 0],
                lengths=[2, 2],
                fields={
                    "turn_bt": [[0, 1], [0, 1]],
                    "token_bt": [[5, 6], [5, 7]],
                    "state_bs": [[0, 1], [0, 1]],
                },
                settings={"credit": "hard"},
                advantage=[[0.0, 0.70710578], [0.0, -0.70710578]],
                why="both begin with the same turn: (+A - A)/2 = 0; then they part",
            ),
        ],
        recommended={"group": 8},
        notes=["With chance 1 and slope 0 every turn branches until the group is full."],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP, *KL),
)


def scaling_inter(
    loss: Method,
    turns: Annotated[tuple[Count, ...], Field(min_length=1)] = (10, 20, 30),
    every: Count = 100,
) -> Method:
    """Compose ScalingInter-RL: GRPO under a growing limit of turns."""
    return loss.with_parts(sampling=Horizon(turns=turns, every=every))


entry(
    "scaling_inter",
    scaling_inter,
    Card(
        title="ScalingInter-RL: a growing horizon",
        papers=[
            Paper(
                "AgentGym-RL: Training LLM Agents for Long-Horizon Decision Making through Multi-Turn Reinforcement "
                "Learning",
                "2509.08755",
                2025,
            )
        ],
        summary="GRPO on episodes that may take more and more turns in the course of training.",
        formula=f"{GRPO_LOSS};  turns of an episode ≤ turns[min(⌊step/every⌋, last)]",
        defaults={
            "turns": "the authors' example: 10, 20, 30",
            "every": "the authors' example: 100 steps",
            **DEFAULTS,
        },
        differs=[
            "The authors also run PPO, RLOO and REINFORCE++ under the same schedule; any method here takes "
            "`sampling: horizon`.",
            "Evaluation always gives the task's own number of turns.",
        ],
        reduces=[SAME_LOSS],
        needs=[TWO, TURNS],
        source="WooooDyy/AgentGym-RL ray_trainer.py (StepRoundsScheduler), by our notes on it",
        golden=[SHARED_PREFIX],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)
