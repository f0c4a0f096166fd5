"""The measured jobs: the same model folder, prompts, reward and batch for both libraries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grouprl.records.examples import Example
from grouprl.tasks import load_task
from grouprl.tasks.task import Task

LEARNING_RATE = 1e-8
"""So small that both libraries sample from the same policy in every step: else one would soon sample shorter
completions."""
SEED = 0


@dataclass(frozen=True)
class Groups:
    """Prompts with equally many completions each; `words` say what is measured on them."""

    words: str
    prompts: int
    group: int

    @property
    def rows(self) -> int:
        """Completions."""
        return self.prompts * self.group


@dataclass(frozen=True)
class Job(Groups):
    """One job. Lengths are in tokens; `full_length` makes the warm-up teach completions that never end by
    themselves."""

    name: str
    digits: int
    max_new_tokens: int
    hidden: int
    layers: int
    heads: int
    intermediate: int
    full_length: bool = False
    reward: str = "sum_after_bar"
    warm_steps: int = 200
    goal: float = 1.0
    """TRL's seconds per step over ours that is aimed at."""

    def task(self) -> Task:
        """The addition task with demonstrations that work the sum out and slip now and then."""
        return load_task({"name": "addition", "digits": self.digits, "think": 1.0, "noise": 0.2}, SEED)

    def sizes(self) -> dict[str, Any]:
        """Sizes of the tiny model."""
        return {n: getattr(self, n) for n in ("hidden", "layers", "heads", "intermediate")}

    def examples(self, count: int) -> Iterator[Example]:
        """Yield the training prompts in the order in which both libraries meet them."""
        task = self.task()
        return (task.example("train", index) for index in range(count))

    def config(self, model: str, steps: int) -> dict[str, Any]:
        """The run's configuration for this library: nothing but training (one tiny evaluation at either end)."""
        return {
            "task": {"name": "addition", "digits": self.digits},
            "model": model,
            "method": {"base": "grpo", "aggregate": "token_mean"},
            "steps": steps,
            "seed": SEED,
            "batch": {"prompts": self.prompts, "group_size": self.group},
            "sampling": {"max_new_tokens": self.max_new_tokens},
            "optim": {"lr": LEARNING_RATE, "schedule": "constant"},
            "eval": {"every": 0, "prompts": 1, "final_prompts": 1},
            # In the trainer's process, as TRL does it: this is no benchmark of verifiers.
            "reward": {"function": f"{REWARDS}:{self.reward}", "workers": 0},
            "run": {"rollouts_every": 0, "checkpoint_every": 10**6, "threads": 1},
        }


REWARDS = str(Path(__file__).with_name("rewards.py"))

A = Job(
    name="A",
    words="two-digit addition, 32 prompts x 16 completions of at most 16 tokens",
    digits=2,
    prompts=32,
    group=16,
    max_new_tokens=16,
    hidden=64,
    layers=3,
    heads=4,
    intermediate=176,
    goal=5.0,
)
B = Job(
    name="B",
    words="three-digit addition, 16 prompts x 16 completions of exactly 32 tokens",
    digits=3,
    prompts=16,
    group=16,
    max_new_tokens=32,
    hidden=128,
    layers=4,
    heads=4,
    intermediate=352,
    full_length=True,
    goal=2.5,
)


def mixed(job: Job) -> Job:
    """The same job with a reward under which hardly any group is dead: no completion can be left out of the update."""
    return replace(job, name=f"{job.name} mixed", words=f"{job.words}; no zero-variance group", reward="even_digits")


JOBS = {job.name: job for job in (A, mixed(A), B, mixed(B))}


def smaller(job: Job) -> Job:
    """A few rows of the same job, for a smoke test."""
    return replace(job, prompts=2, group=4, warm_steps=3)
