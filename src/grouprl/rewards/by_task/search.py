"""Rewards of answers for which the policy may use a search tool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Searched:
    """An answer, and how it was found."""

    correct: bool
    searches: int
    """Number of calls of the search tool."""
    needed: bool
    """Whether the answer cannot be known without searching."""
    well_formed: bool = True
    """Whether every turn could be read."""


def exact(seen: Searched) -> float:
    """Return 1 for a right answer, however it was found: Search-R1's exact match."""
    return float(seen.correct)


def sem(seen: Searched, *, needless: float = 0.5) -> float:
    """Return 1 for a right answer found as it should be, `needless` for one after an unnecessary search, else 0.

    The order follows SEM (Sha et al. 2025, arXiv 2505.07903): a right answer earns most if the policy searched exactly
    when it had to, and less after a needless search; a malformed turn earns 0. The paper's numbers are not known to us;
    `needless` = 0.5 is ours.
    """
    if not (seen.correct and seen.well_formed):
        return 0.0
    return needless if seen.searches and not seen.needed else 1.0


def formatted(seen: Searched, *, weight: float = 0.2) -> float:
    """Return (1 - weight) for a right answer and `weight` if every turn could be read: answer and form, added.

    Retrieval agents such as MMhops-R1 are rewarded this way; the weight is ours.
    """
    return (1 - weight) * seen.correct + weight * seen.well_formed


def asearcher(seen: Searched) -> float:
    """Return the answer's F1 if every turn could be read, else 0: format times F1, at the end alone.

    The rule of ASearcher's agents without a judge (arXiv:2508.07976). An answer here is one word, whose F1 is 1 or 0.
    """
    return float(seen.correct and seen.well_formed)


SEARCH_REWARDS: dict[str, Callable[[Searched], float]] = {
    "exact": exact,
    "sem": sem,
    "formatted": formatted,
    "asearcher": asearcher,
}
"""The rewards of a searched answer, by name."""
