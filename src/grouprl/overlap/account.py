"""The account of questions asked ahead: each was trained on, or left out for a stated reason, or is still under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from grouprl.errors import InputError

LATE, FAILED, UNWANTED, REDRAWN = "late", "failed", "unwanted", "redrawn"
"""Why a question's answers were not trained on: drawn by weights older than the bound, the reward or the environment
failed on them, the refill rule wanted others, an interruption lost them and they were drawn anew."""
STARVED = 3
"""So many times asked without being trained on, and not because its answers were unwanted: the question starves."""


class Account:
    """Counts questions from being asked to being trained on."""

    def __init__(self) -> None:
        self.asked = self.trained = 0
        self.dropped: Counter[str] = Counter()
        self._misses: Counter[int] = Counter()
        self._of_step: Counter[str] = Counter()

    @property
    def under_way(self) -> int:
        """Questions asked and not accounted for yet."""
        return self.asked - self.trained - sum(n for reason, n in self.dropped.items() if reason != REDRAWN)

    def ask(self, count: int) -> None:
        """`count` questions are asked for the first time."""
        self.asked += count

    def train(self, indices: Iterable[int]) -> None:
        """These questions (numbers of the training split) are trained on."""
        for index in indices:
            self.trained += 1
            self._misses.pop(index, None)

    def drop(self, indices: Iterable[int], reason: str) -> list[int]:
        """The answers to these questions are left out for `reason`; returns those that starve as of now."""
        if reason not in (LATE, FAILED, UNWANTED, REDRAWN):
            raise InputError(f"'{reason}' is no reason to leave a question out")
        starved = []
        for index in indices:
            self.dropped[reason] += 1
            self._of_step[reason] += 1
            if reason != UNWANTED:
                self._misses[index] += 1
                starved += [index] * (self._misses[index] == STARVED)
        return starved

    def read(self) -> dict[str, float]:
        """Questions left out since the last call, by reason."""
        taken, self._of_step = self._of_step, Counter()
        return {f"groups_dropped/{reason}": float(count) for reason, count in taken.items()}

    def state(self) -> dict[str, Any]:
        """Plain state for a checkpoint."""
        misses = {str(index): count for index, count in self._misses.items()}
        return {"asked": self.asked, "trained": self.trained, "dropped": dict(self.dropped), "misses": misses}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.asked, self.trained = int(state["asked"]), int(state["trained"])
        self.dropped = Counter(state["dropped"])
        self._misses = Counter({int(index): count for index, count in state["misses"].items()})
