"""Prompts that starve: requested again and again, and never trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

STARVED = 3
"""The number of lost requests in a row after which a prompt starves; refilled requests do not count."""


class Starvation:
    """By prompt (its number in the training split): how often its completions were lost since it was last trained on.

    Completions are lost when the reward or the environment fails on them, when they are too old, and when an
    interruption discards them; completions that a refill rule leaves out do not count as lost.
    """

    def __init__(self) -> None:
        self._lost: Counter[int] = Counter()

    def fed(self, indices: Iterable[int]) -> None:
        """Record that these prompts are trained on."""
        for index in indices:
            self._lost.pop(index, None)

    def lost(self, indices: Iterable[int]) -> list[int]:
        """Record that these prompts have lost their completions; return those that have just begun to starve."""
        starved = []
        for index in indices:
            self._lost[index] += 1
            starved += [index] * (self._lost[index] == STARVED)
        return starved

    def state(self) -> dict[str, int]:
        """Return plain state for a checkpoint."""
        return {str(index): count for index, count in self._lost.items()}

    def restore(self, state: Mapping[str, int]) -> None:
        """Continue from `state`."""
        self._lost = Counter({int(index): count for index, count in state.items()})
