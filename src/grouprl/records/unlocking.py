"""Entries of observations that show the last achievement: what was seen before and after it."""

from __future__ import annotations

import numpy as np

NOW, FROM, TO = "now", "unlocked_from", "unlocked_to"
"""What is seen now, and what was seen before and after the last action that unlocked an achievement."""


class LastUnlock:
    """Keeps what was seen around the last action that was paid more than `above`; zeros before the first one."""

    def __init__(self, above: float = 0.1) -> None:
        self.above = above
        self._now = self._from = self._to = np.zeros(0, np.float32)

    def begin(self, seen: np.ndarray) -> dict[str, np.ndarray]:
        """Return the entries of an episode's first observation."""
        self._now, self._from, self._to = seen, np.zeros_like(seen), np.zeros_like(seen)
        return self._entries()

    def after(self, seen: np.ndarray, paid: float) -> dict[str, np.ndarray]:
        """Return the entries of the observation after an action with this reward."""
        if paid > self.above:
            self._from, self._to = self._now, seen
        self._now = seen
        return self._entries()

    def _entries(self) -> dict[str, np.ndarray]:
        return {NOW: self._now, FROM: self._from, TO: self._to}
