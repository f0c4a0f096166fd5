"""A lock that opens to one combination: the standard check that stored data find what chance does not."""

from __future__ import annotations

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.environment import ArrayObservation, Step
from grouprl.protocols import Box, Discrete, Spaces
from grouprl.records.examples import Example
from grouprl.records.offline import StoredEpisode

STORED = 300
"""Trajectories of `expert_episodes` and `random_episodes`."""


class CombinationLock:
    """Dial `horizon` numbers; the right ones in the right order are paid 1 at the end, anything else nothing.

    A number that is wrong jams the lock, which the observation shows: it is one-hot over the places, those of a lock
    that is not jammed first, [2·horizon]; after the last number it is all zeros. A policy that dials at random opens it
    with `numbers`^-`horizon`. The tabular form of the combination lock of Zhou et al. 2023 (arXiv:2311.08384).

    Args:
        horizon: numbers of a combination.
        numbers: how many numbers there are to choose from.
        key: the combination is drawn from it.
    """

    def __init__(self, horizon: int = 10, numbers: int = 10, key: int = 0) -> None:
        if horizon < 1 or numbers < 2:
            raise InputError(f"horizon {horizon}, numbers {numbers}", "a lock has at least one place and two numbers")
        self.horizon, self.numbers = horizon, numbers
        self.combination: list[int] = np.random.default_rng(key).integers(numbers, size=horizon).tolist()
        self.spaces = Spaces(Box((2 * horizon,), 0, 1), Discrete(numbers))
        self._place, self._jammed = horizon, False

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        """Begin with the first place."""
        self._place, self._jammed = 0, False
        return self.shown()

    def step(self, action: object) -> Step:
        """Dial a number. Raises InputError for an unknown number, and if no episode is under way."""
        number = int(np.asarray(action))
        if self._place >= self.horizon or not 0 <= number < self.numbers:
            raise InputError(
                f"number {number} at place {self._place}",
                f"numbers are 0 to {self.numbers - 1}, and are dialled during an episode",
                "Call reset first",
            )
        self._jammed |= number != self.combination[self._place]
        self._place += 1
        over = self._place == self.horizon
        return Step(self.shown(), float(over and not self._jammed), terminated=over)  # type: ignore[arg-type]

    def score(self) -> dict[str, float]:
        """Return no components."""
        return {}

    def close(self) -> None:
        """End the episode."""
        self._place = self.horizon

    def shown(self) -> ArrayObservation:
        """Return what is seen now."""
        seen = np.zeros(2 * self.horizon, np.float32)
        if self._place < self.horizon:
            seen[self._place + self.horizon * self._jammed] = 1
        return ArrayObservation(seen)


def dialled(lock: CombinationLock, numbers: list[int]) -> StoredEpisode:
    """Return the trajectory of an episode with these numbers."""
    seen, paid = [lock.reset(Example("stored", ""), 0).values], []
    for number in numbers:
        paid.append(lock.step(number).reward)
        seen.append(lock.shown().values)
    return StoredEpisode(np.array(seen), np.array(numbers), np.array(paid), terminated=True, correct=sum(paid) > 0)


def expert_episodes(lock: CombinationLock | None = None, count: int = STORED) -> list[StoredEpisode]:
    """Return trajectories in the default lock of an expert that dials at random with probability 1/horizon."""
    lock = lock or CombinationLock()
    luck = np.random.default_rng(0)
    chance_eh = luck.integers(lock.numbers, size=(count, lock.horizon))
    slips_eh = luck.random((count, lock.horizon)) < 1 / lock.horizon
    return [dialled(lock, row.tolist()) for row in np.where(slips_eh, chance_eh, lock.combination)]


def random_episodes(lock: CombinationLock | None = None, count: int = STORED) -> list[StoredEpisode]:
    """Return trajectories in the default lock that dial at random and all earned nothing."""
    lock = lock or CombinationLock()
    chance_eh = np.random.default_rng(1).integers(lock.numbers, size=(count, lock.horizon))
    found = [dialled(lock, row.tolist()) for row in chance_eh]
    return [each for each in found if not each.correct]


def compared_episodes() -> list[dict[str, object]]:
    """Return pairs of trajectories in the default lock: one of the expert that opened it, and one dialled at random."""
    opened = [each for each in expert_episodes() if each.correct]
    pairs = zip(opened, random_episodes(), strict=False)
    return [each.as_row() | {"group": number} for number, pair in enumerate(pairs) for each in pair]
