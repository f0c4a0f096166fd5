"""The best of a small declared sweep, for each arm on each source, on seeds that no comparison has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grouprl.experiments.run_outcome import RunOutcome


@dataclass(frozen=True)
class Tuned:
    """The sweep of one arm on one source: what was tried, its scores by seed, and which combination was chosen."""

    source: str
    arm: str
    tried: tuple[tuple[str, ...], ...]
    """[C] combinations of changes `key=value`."""
    scores: tuple[tuple[float | None, ...], ...]
    """[C, S] final measure by seed; None of a run that failed."""
    chosen: tuple[str, ...]

    def at_ends(self) -> list[str]:
        """Return the chosen changes that are the least or the greatest of more than two that were tried."""
        columns = [sorted({_value(each[place]) for each in self.tried}) for place in range(len(self.chosen))]
        pairs = zip(self.chosen, columns, strict=True)
        return [change for change, column in pairs if len(column) > 2 and _value(change) in (column[0], column[-1])]

    def notes(self) -> list[str]:
        """Say what weakens the choice: the best value is the end of its sweep, or runs failed."""
        ends = self.at_ends()
        said = [f"{self.arm} on {self.source} is best at the end of its sweep, {change}: widen it" for change in ends]
        failed = [" ".join(each) for each, row in zip(self.tried, self.scores, strict=True) if None in row]
        return [*said, *(f"{self.arm} on {self.source} failed at {each}" for each in failed)]


def best(
    source: str, arm: str, tried: Sequence[tuple[tuple[str, ...], Sequence[RunOutcome]]], measure: str, sign: int = 1
) -> Tuned:
    """Choose the combination with the highest mean final measure over its seeds; of equals the first.

    With `sign` -1 it is that with the lowest, for measures of which less is better.

    A combination of which a run failed, or ended with a measure that is not a number, is chosen only if all have.
    """
    scores = [tuple(_score(each, measure) for each in outcomes) for _, outcomes in tried]
    means = [-np.inf if None in row else sign * float(np.mean([x for x in row if x is not None])) for row in scores]
    changes = tuple(each for each, _ in tried)
    return Tuned(source, arm, changes, tuple(scores), changes[int(np.argmax(means))])


def _score(outcome: RunOutcome, measure: str) -> float | None:
    """Return the final measure of a run; None if it failed, or if that is not a number."""
    found = float("nan") if outcome.error else outcome.final(measure)
    return found if np.isfinite(found) else None


def _value(change: str) -> float:
    """Return the number of a change `key=value`; NaN if the value is not a number."""
    try:
        return float(change.partition("=")[2])
    except ValueError:
        return float("nan")
