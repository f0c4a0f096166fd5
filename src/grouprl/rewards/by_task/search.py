"""Rewards of answers that may be searched for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Searched:
    """How an answer was found."""

    correct: bool
    searches: int
    """How often the tool was called."""
    needed: bool
    """Whether the answer cannot be known without searching."""
    well_formed: bool = True
    """Whether every turn could be read."""


def exact(seen: Searched) -> float:
    """Return 1 for a right answer, however it was found: Search-R1's exact match."""
    return float(seen.correct)


def sem(seen: Searched, *, needless: float = 0.5) -> float:
    """Return 1 for a right answer found as it should be, `needless` for one searched for without need, else 0.

    The order is that of SEM (Sha et al. 2025, arXiv 2505.07903): right without searching where that suffices, and right
    after searching where it does not, go before right but needlessly searched; a malformed turn gives 0. The paper's
    numbers are not known to us; `needless` = 0.5 is ours.
    """
    if not (seen.correct and seen.well_formed):
        return 0.0
    return needless if seen.searches and not seen.needed else 1.0


def formatted(seen: Searched, *, weight: float = 0.2) -> float:
    """Return (1 - weight) for a right answer and `weight` if every turn could be read: answer and form, added.

    The composition of retrieval agents such as MMhops-R1; the weight is ours.
    """
    return (1 - weight) * seen.correct + weight * seen.well_formed


SEARCH_REWARDS: dict[str, Callable[[Searched], float]] = {"exact": exact, "sem": sem, "formatted": formatted}
"""Rewards by name."""
