"""The rule by which the total reward of an episode makes it correct; it is the same for all adapters.

A threshold that an environment brings, and "any above 0", are about whole episodes: one that was cut off early may be
above a negative threshold because it lost little time. So they hold for episodes that the environment itself ended, by
its own limit of time included. A threshold that the task states is about episodes of at most the task's own turns, so
it also holds for those that this limit cut off. An episode that has not ended at all, because its context is full, is
not correct. Whatever its end, an episode keeps the rewards of its turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

End = Literal["own", "limit", "none"]
"""What ended an episode so far: its environment, the task's limit of turns, or nothing."""


@dataclass(frozen=True)
class Success:
    """The lowest total reward of a correct episode."""

    least: float | None = None
    """The threshold; None for any total above 0."""
    stated: bool = False
    """Whether the task states it, so that it is about episodes of the task's length."""

    @classmethod
    def of(cls, stated: float | None, own: float | None = None) -> Success:
        """Return the threshold that the task states if it states one, otherwise the environment's own."""
        return cls(own) if stated is None else cls(stated, stated=True)

    def reached(self, total: float, end: End) -> bool:
        """Return whether an episode with this total reward and end is correct."""
        if end == "none" or (end == "limit" and not self.stated):
            return False
        return total > 0 if self.least is None else total >= self.least
