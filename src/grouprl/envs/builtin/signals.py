"""A referential game: one agent describes a thing, and another identifies it."""

from __future__ import annotations

import random
from itertools import product

from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns

SPEAKER, LISTENER = "speaker", "listener"
COLOURS, SHAPES = "rgby", "1234"
SIGNS = "abcdefgh"
MESSAGES = tuple(map("".join, product(SIGNS, SIGNS)))
NOTHING = "??"
"""The message that the listener hears if the speaker's text is not a valid message."""


def agreed(thing: str) -> str:
    """Return the message that demonstrations use for a thing: a sign for its colour, a..d, and its shape, e..h."""
    return SIGNS[COLOURS.index(thing[0])] + SIGNS[4 + SHAPES.index(thing[1])]


class Signals(Game):
    """The speaker sees things and the target among them, "r3: g1 r3 b2>", and says two signs, "cg"; the listener hears
    these, sees the things in another order, "cg: b2 r3 g1>", and names one.

    Columns: `things`, `shown` (the same in the listener's order), `meant`. Each has its own context. A right choice
    gives both 1. Text that is not a message is heard as "??"; a choice that is not one of the things ends the game. The
    state is what an agent sees, regardless of order.
    """

    def __init__(self, noise: float = 0.5) -> None:
        """Prepare an episode; `noise` is the chance that a demonstrated sign or choice is random."""
        super().__init__(max_turns=2)
        self.noise = noise
        self.things: list[str] = []
        self.shown: list[str] = []
        self.meant, self.message, self.choice = "", "", ""

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Lay the things out."""
        self.things, self.shown, self.meant = list(columns["things"]), list(columns["shown"]), columns["meant"]

    @property
    def agent(self) -> str:
        """The speaker, then the listener."""
        return LISTENER if self.message else SPEAKER

    @property
    def state(self) -> str:
        """The target or the message, and the things in sorted order."""
        return f"{self.message or self.meant}:{' '.join(sorted(self.things))}"

    @property
    def legal(self) -> tuple[str, ...]:
        """All messages, or all things."""
        return tuple(self.shown) if self.message else MESSAGES

    @property
    def correct(self) -> bool:
        """True if the listener named the target."""
        return self.choice == self.meant

    def act(self, action: str) -> Outcome:
        """Speak or choose."""
        valid = action in self.legal
        if not self.message:
            self.message = action if valid else NOTHING
            return Outcome(f"{self.message}: {' '.join(self.shown)}>", valid=valid)
        self.choice = action
        return Outcome("", float(self.correct), ended=True, valid=valid, rewards={SPEAKER: float(self.correct)})

    def demonstrate(self, rng: random.Random) -> str:
        """Return the agreed message or choice, or a random one now and then."""
        if not self.message:
            return "".join(rng.choice(SIGNS) if rng.random() < self.noise else sign for sign in agreed(self.meant))
        fitting = max(self.shown, key=lambda thing: sum(map(str.__eq__, agreed(thing), self.message)))
        return rng.choice(self.shown) if rng.random() < self.noise else fitting
