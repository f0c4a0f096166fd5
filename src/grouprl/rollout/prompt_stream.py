"""The stream of training questions: endless tasks count on, finite ones are shuffled anew each epoch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from grouprl.core.errors import InputError
from grouprl.rollout.requests import Ask
from grouprl.tasks.task import Question, Task


class QuestionSource:
    """Deals out a task's training questions.

    `drawn` counts the questions asked in this run, `position` those taken from the stream in its own order.
    `limit` restricts the stream to the first questions of the task.
    """

    def __init__(self, task: Task, seed: int, limit: int | None = None) -> None:
        self.task, self.seed, self.drawn, self.position = task, seed, 0, 0
        size = task.size("train")
        if size == 0:
            raise InputError(f"the task '{task.name}' has no training questions", "training needs at least one")
        self.size = size if limit is None else limit if size is None else min(size, limit)

    def take(self, count: int) -> list[tuple[int, Question]]:
        """Return the next `count` questions, each with its ordinal in this run (0, 1, 2 …)."""
        return [(ask.ordinal, ask.question) for ask in self.asks(count, 1)]

    def asks(self, count: int, answers: int) -> list[Ask]:
        """Return the next `count` questions of the stream, each to be answered `answers` times."""
        places = range(self.position, self.position + count)
        self.position += count
        return [self.ask(self._index(place), answers) for place in places]

    def ask(self, index: int, answers: int) -> Ask:
        """Return question number `index` of the training split under the next ordinal."""
        ordinal = self.drawn
        self.drawn += 1
        return Ask(ordinal, index, self.task.question("train", index), answers)

    def state(self) -> dict[str, Any]:
        """Plain state for a checkpoint."""
        return {"drawn": self.drawn, "position": self.position}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.drawn, self.position = int(state["drawn"]), int(state["position"])

    def _index(self, place: int) -> int:
        if self.size is None:
            return place
        epoch, rest = divmod(place, self.size)
        return int(_shuffled(self.size, self.seed, epoch)[rest])


@lru_cache(maxsize=2)
def _shuffled(size: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(size)
