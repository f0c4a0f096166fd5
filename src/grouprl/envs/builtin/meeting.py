"""Places of which one is as good as another, as long as everybody goes to the same: a game with many equilibria."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.joint_world import InTurns, JointStep, told
from grouprl.protocols import Box, Discrete, Spaces

if TYPE_CHECKING:
    from grouprl.records.examples import Example

Action = int | np.ndarray
PARTY = ("first", "second", "third", "fourth", "fifth")


class MeetingWorld:
    """From `least` to `most` agents go to places at once, round by round; they earn by how many are at the same one.

    A round pays everybody Σ_p worth_p·(share of the agents at p)², divided by the rounds: the most if all are at one
    place of the highest worth. Agents see how many they are, of the last round how many were at each place, and the
    share of rounds played. They do not see what a place is worth. How many come is drawn for each episode.
    """

    agents: ClassVar[tuple[str, ...]] = PARTY

    def __init__(self, worth: Sequence[float], least: int, most: int, rounds: int) -> None:
        self._worth_p = np.asarray(worth, dtype=float)
        if self._worth_p.ndim != 1 or len(self._worth_p) < 2 or not np.isfinite(self._worth_p).all():
            raise InputError(f"worth = {worth}", "it must be a list of two or more finite numbers, one for each place")
        if not 2 <= least <= most <= len(PARTY) or rounds < 1:
            raise InputError(
                f"least={least}, most={most}, rounds={rounds}",
                f"from two to {len(PARTY)} agents take part, in at least one round",
            )
        self._least, self._most, self._rounds = least, most, rounds
        self.spaces = Spaces(Box((len(self._worth_p) + 2,), 0.0, 1.0), Discrete(len(self._worth_p)))
        self._share_p = np.zeros(len(self._worth_p))
        self._come, self._round = least, 0

    def begin(self, example: Example, seed: int) -> dict[str, object]:
        """Draw the number of agents."""
        self._come = int(np.random.default_rng(seed).integers(self._least, self._most + 1))
        return self._seen()

    def act(self, actions: Mapping[str, Action]) -> JointStep:
        """Send all to their places, and pay them alike."""
        place_a = [int(actions[agent]) for agent in PARTY[: self._come]]
        self._share_p = np.bincount(place_a, minlength=len(self._worth_p)) / self._come
        self._round += 1
        over, paid = self._round == self._rounds, float(self._worth_p @ self._share_p**2) / self._rounds
        return JointStep({} if over else self._seen(), dict.fromkeys(PARTY[: self._come], paid))

    def correct(self) -> float:
        """Return 1 if all were at one place of the highest worth in the last round, else 0."""
        place = int(self._share_p.argmax())
        return float(self._share_p[place] == 1 and self._worth_p[place] == self._worth_p.max())

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _seen(self) -> dict[str, object]:
        seen = np.concatenate([[self._come / len(PARTY)], self._share_p, [self._round / self._rounds]])
        return dict.fromkeys(PARTY[: self._come], seen)


class MeetingPlaces(InTurns):
    """Two to five agents meet at one of several places; with `strategies` they are told the number of one."""

    agents = PARTY

    def __init__(
        self,
        worth: Sequence[float] = (1.0, 1.0, 1.0),
        least: int = 2,
        most: int = 5,
        rounds: int = 2,
        strategies: int = 1,
    ) -> None:
        super().__init__(told(MeetingWorld(worth, least, most, rounds), strategies))
