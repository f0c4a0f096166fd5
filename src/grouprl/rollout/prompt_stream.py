"""The stream of training prompts: endless tasks in order, finite ones shuffled anew each epoch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from grouprl.core.errors import InputError
from grouprl.records.examples import Example
from grouprl.records.requests import RolloutRequest
from grouprl.tasks.task import Task


class PromptStream:
    """Deals out a task's training prompts.

    `sampled` counts the prompts sampled in this run, `position` those taken from the stream in its own order.
    `limit` restricts the stream to the first prompts of the task.
    """

    def __init__(self, task: Task, seed: int, limit: int | None = None) -> None:
        self.task, self.seed, self.sampled, self.position = task, seed, 0, 0
        size = task.size("train")
        if size == 0:
            raise InputError(f"the task '{task.name}' has no training prompts", "training needs at least one")
        self.size = size if limit is None else limit if size is None else min(size, limit)

    def take(self, count: int) -> list[tuple[int, Example]]:
        """Return the next `count` prompts, each with its ordinal in this run (0, 1, 2 …)."""
        return [(request.ordinal, request.example) for request in self.requests(count, 1)]

    def requests(self, count: int, completions: int) -> list[RolloutRequest]:
        """Return the next `count` prompts of the stream, each to be completed `completions` times."""
        places = range(self.position, self.position + count)
        self.position += count
        return [self.request(self._index(place), completions) for place in places]

    def request(self, index: int, completions: int) -> RolloutRequest:
        """Return prompt number `index` of the training split under the next ordinal."""
        ordinal = self.sampled
        self.sampled += 1
        return RolloutRequest(ordinal, index, self.task.example("train", index), completions)

    def state(self) -> dict[str, Any]:
        """Plain state for a checkpoint."""
        return {"sampled": self.sampled, "position": self.position}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.sampled, self.position = int(state["sampled"]), int(state["position"])

    def _index(self, place: int) -> int:
        if self.size is None:
            return place
        epoch, rest = divmod(place, self.size)
        return int(_shuffled(self.size, self.seed, epoch)[rest])


@lru_cache(maxsize=2)
def _shuffled(size: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(size)
