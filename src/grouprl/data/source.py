"""The stream of training questions: endless tasks count on, finite ones are shuffled anew each epoch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from grouprl.errors import InputError
from grouprl.tasks.task import Question, Task


class QuestionSource:
    """Deals out a task's training questions. Its whole state is one counter, `drawn`."""

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.seed, self.drawn = task, seed, 0
        self.size = task.size("train")
        if self.size == 0:
            raise InputError(f"the task '{task.name}' has no training questions", "training needs at least one")

    def take(self, count: int) -> list[tuple[int, Question]]:
        """Return the next `count` questions, each with its ordinal in this run (0, 1, 2 …)."""
        ordinals = range(self.drawn, self.drawn + count)
        self.drawn += count
        return [(n, self.task.question("train", self._index(n))) for n in ordinals]

    def state(self) -> dict[str, Any]:
        """Plain state for a checkpoint."""
        return {"drawn": self.drawn}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.drawn = int(state["drawn"])

    def _index(self, ordinal: int) -> int:
        if self.size is None:
            return ordinal
        epoch, place = divmod(ordinal, self.size)
        return int(_shuffled(self.size, self.seed, epoch)[place])


@lru_cache(maxsize=2)
def _shuffled(size: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(size)
