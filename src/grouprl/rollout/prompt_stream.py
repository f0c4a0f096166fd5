"""The stream of training prompts: endless tasks in order, finite ones reshuffled each epoch."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from grouprl.core.errors import InputError, RunError
from grouprl.core.json_types import State
from grouprl.records.examples import Example
from grouprl.records.requests import RolloutRequest
from grouprl.rollout.quarantine import SetAside
from grouprl.tasks.task import Task


def prompt_count(task: Task, limit: int | None) -> int | None:
    """Return the number of a task's training prompts, at most `limit`; None if they never end."""
    return min((each for each in (task.size("train"), limit) if each is not None), default=None)


class PromptStream:
    """Deals out a task's training prompts.

    `sampled` counts the prompts sampled in this run, `position` those taken from the stream in its own order.
    `limit` restricts the stream to the first prompts of the task. Prompts that are set aside (`aside`) are offered
    once more and then left out.
    """

    def __init__(self, task: Task, seed: int, limit: int | None = None) -> None:
        self.task, self.seed, self.sampled, self.position = task, seed, 0, 0
        self.aside = SetAside()
        self.size = prompt_count(task, limit)
        if task.size("train") == 0:
            raise InputError(f"the task '{task.name}' has no training prompts", "training needs at least one prompt")

    def take(self, count: int) -> list[tuple[int, Example]]:
        """Return the next `count` prompts, each with its ordinal in this run (0, 1, 2 …)."""
        return [(request.ordinal, request.example) for request in self.requests(count, 1)]

    def requests(self, count: int, completions: int) -> list[RolloutRequest]:
        """Return the next `count` prompts of the stream, each to be completed `completions` times.

        Raises:
            RunError: every prompt has been left out.
        """
        return [self.request(self._next(), completions) for _ in range(count)]

    def _next(self) -> int:
        """Return the index of the next prompt that may be offered."""
        for index in self.aside.due(self.position):
            if self.aside.allows(index):
                return index
        while self.size is None or self.aside.excluded < self.size:
            index = self._index(self.position)
            self.position += 1
            if self.aside.allows(index):
                return index
        raise RunError(
            f"all {self.size} training prompts of the task '{self.task.name}' are left out: its environments hung or "
            f"ended their process on each of them; for instance on '{self.aside.prompts[0].prompt}': "
            f"{self.aside.prompts[0].what}"
        )

    def request(self, index: int, completions: int) -> RolloutRequest:
        """Return prompt number `index` of the training split under the next ordinal."""
        ordinal = self.sampled
        self.sampled += 1
        return RolloutRequest(ordinal, index, self.task.example("train", index), completions)

    def state(self) -> State:
        """Return the state for a checkpoint as plain data."""
        return {"sampled": self.sampled, "position": self.position, "set_aside": self.aside.state()}

    def restore(self, state: State) -> None:
        """Continue from what `state` returned."""
        self.sampled, self.position = int(state["sampled"]), int(state["position"])
        self.aside.restore(state.get("set_aside", {}))

    def _index(self, place: int) -> int:
        if self.size is None:
            return place
        epoch, rest = divmod(place, self.size)
        return int(_shuffled(self.size, self.seed, epoch)[rest])


@lru_cache(maxsize=2)
def _shuffled(size: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(size)
