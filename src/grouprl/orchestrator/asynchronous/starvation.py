"""Prompts that starve: requested again and again, and never trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

STARVED = 3
"""So many times in a row requested without being trained on, and not because other prompts were wanted."""


class Starvation:
    """How often each prompt (number of the training split) has lost its completions since it was last trained on.

    Completions are lost when the reward or the environment fails on them, when they are too old, and when an
    interruption takes them; what a refill rule leaves out does not count as lost.
    """

    def __init__(self) -> None:
        self._lost: Counter[int] = Counter()

    def fed(self, indices: Iterable[int]) -> None:
        """These prompts are trained on."""
        for index in indices:
            self._lost.pop(index, None)

    def lost(self, indices: Iterable[int]) -> list[int]:
        """These have lost their completions; returns those that starve as of now."""
        starved = []
        for index in indices:
            self._lost[index] += 1
            starved += [index] * (self._lost[index] == STARVED)
        return starved

    def state(self) -> dict[str, int]:
        """Plain state for a checkpoint."""
        return {str(index): count for index, count in self._lost.items()}

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on where `state` was taken."""
        self._lost = Counter({int(index): count for index, count in state.items()})
