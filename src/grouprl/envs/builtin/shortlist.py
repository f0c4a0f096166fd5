"""A list of recommendations, built item by item."""

from __future__ import annotations

import random

from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns

THINGS = "abcdefghijkl"
"""Things that can be recommended."""


class Shortlist(Game):
    """A user with a known taste: recommend things that they like and have not seen, one per turn.

    Columns: `liked` and `seen`. A thing that is liked, and was neither seen nor named before, is a hit and earns its
    share of 1; the list ends when its places are filled. Hits are not announced: the answer is '>', preceded by '!' if
    the action is not a thing, was seen or was named before; such an action takes a place, too. The state is the things
    named.
    """

    def __init__(self, max_turns: int, noise: float = 0.3) -> None:
        """Prepare a list of `max_turns` places; `noise` is the chance that a demonstration names any thing."""
        super().__init__(max_turns)
        self.noise = noise
        self.liked = self.seen = self.named = ""
        self.hits = 0

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Set up the user."""
        self.liked, self.seen = columns["liked"], columns["seen"]

    @property
    def state(self) -> str:
        """The things named, sorted; "-" before the first."""
        return "".join(sorted(self.named)) or "-"

    @property
    def legal(self) -> tuple[str, ...]:
        """The things that were neither seen nor named."""
        return tuple(thing for thing in THINGS if thing not in self.seen + self.named)

    @property
    def correct(self) -> bool:
        """True if every place has a hit."""
        return self.hits == self.max_turns

    @property
    def wanted(self) -> list[str]:
        """The things that would be hits."""
        return [thing for thing in self.legal if thing in self.liked]

    def act(self, action: str) -> Outcome:
        """Put a thing on the list."""
        valid, hit = action in self.legal, action in self.wanted
        self.named += action if valid else ""
        self.hits += hit
        full = self.turns + 1 == self.max_turns
        return Outcome(">" if valid else "!>", hit / self.max_turns, full, valid)

    def demonstrate(self, rng: random.Random) -> str:
        """Return a wanted thing, or with a certain chance any thing."""
        return rng.choice(THINGS if rng.random() < self.noise else self.wanted)
