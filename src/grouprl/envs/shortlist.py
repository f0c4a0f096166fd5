"""A list of recommendations, made item by item."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from grouprl.envs.game import Game, Outcome


class Shortlist(Game):
    """Things with their kinds and a kind that somebody likes: name as many as are liked, one a turn.

    Columns: `kinds` (thing -> kind) and `liked`. A thing of that kind that was not named before is a hit and earns its
    share of 1; the list has as many places as there are hits, and ends with the last. Nobody says what is liked: the
    answer is '>', "!>" to what is no thing or was named before, which takes a place all the same. The state is what
    was named.
    """

    def __init__(self, max_turns: int, noise: float = 0.3) -> None:
        """Prepare a list of `max_turns` places; `noise` is the chance that a demonstration names any thing."""
        super().__init__(max_turns)
        self.noise = noise
        self.kinds: Mapping[str, str] = {}
        self.liked = ""
        self.named: list[str] = []

    def begin(self, columns: Mapping[str, Any], rng: random.Random) -> None:
        """Read what there is."""
        self.kinds, self.liked = columns["kinds"], columns["liked"]

    @property
    def state(self) -> str:
        """The things named, sorted; "-" before the first."""
        return "".join(sorted(self.named)) or "-"

    @property
    def legal(self) -> tuple[str, ...]:
        """The things that were not named."""
        return tuple(thing for thing in self.kinds if thing not in self.named)

    @property
    def correct(self) -> bool:
        """Whether everything that is liked was named."""
        return not self.missed()

    def missed(self) -> list[str]:
        """Return what is liked and was not named."""
        return [thing for thing in self.legal if self.kinds[thing] == self.liked]

    def act(self, action: str) -> Outcome:
        """Put a thing on the list."""
        valid, hit = action in self.legal, action in self.missed()
        self.named += [action] if valid else []
        full = self.turns + 1 == self.max_turns
        return Outcome(">" if valid else "!>", hit / self.max_turns, full, valid)

    def demonstrate(self, rng: random.Random) -> str:
        """Name something that is liked, or with a certain chance anything."""
        return rng.choice(list(self.kinds) if rng.random() < self.noise else self.missed() or list(self.kinds))
