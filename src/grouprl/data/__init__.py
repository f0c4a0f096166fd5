"""Which questions are asked, how often, with what help, and which rows are used again."""

from grouprl.data import (
    allocation,
    bandit,
    budget,
    budget_prompts,
    continuations,
    curriculum,
    demonstrations,
    difficulty,
    extra,
    guidance,
    replay,
    rounds,
    segments,
    variants,
)

__all__ = [
    "allocation",
    "bandit",
    "budget",
    "budget_prompts",
    "continuations",
    "curriculum",
    "demonstrations",
    "difficulty",
    "extra",
    "guidance",
    "replay",
    "rounds",
    "segments",
    "variants",
]
