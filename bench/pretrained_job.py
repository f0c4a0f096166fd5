"""The measured job on a pretrained model: prompts, reward and sizes for both libraries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rewards
from grouprl.records.examples import Example
from grouprl.tasks import load_task
from grouprl.tasks.task import Task
from jobs import LEARNING_RATE, REWARDS, SEED

PROMPTS, GROUP, MAX_NEW_TOKENS = 8, 8, 24
ROWS = PROMPTS * GROUP
TASK = f"{Path(__file__).parents[1] / 'real' / 'tasks.py'}:Sums"
reward = rewards.even_digits


def task() -> Task:
    """Sums in a sentence, asked as one message of the user."""
    return load_task(TASK, SEED)


def examples(count: int) -> Iterator[Example]:
    """Yield the training prompts in the order in which both libraries meet them."""
    found = task()
    return (found.example("train", index) for index in range(count))


def config(model: str, steps: int, precision: str, device: str) -> dict[str, Any]:
    """The run's configuration for this library: nothing but training (one tiny evaluation at either end)."""
    return {
        "task": TASK,
        "model": {"name": model, "precision": precision, "device": device, "dtype": "float32"},
        "method": {"base": "grpo", "aggregate": "token_mean"},
        "steps": steps,
        "seed": SEED,
        "batch": {"prompts": PROMPTS, "group_size": GROUP},
        "sampling": {"max_new_tokens": MAX_NEW_TOKENS},
        "optim": {"lr": LEARNING_RATE, "schedule": "constant"},
        "eval": {"every": 0, "prompts": 1, "final_prompts": 1},
        "reward": {"function": f"{REWARDS}:even_digits", "workers": 0},
        "run": {"rollouts_every": 0, "checkpoint_every": 10**6, "threads": 1},
    }
