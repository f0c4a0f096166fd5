"""A game of guessing a hidden number."""

from __future__ import annotations

import random

from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns


class Guess(Game):
    """A number is hidden within a range; every guess is answered with '<', '>' or '='.

    Columns: `low`, `high` (both included) and `hidden`. The state is the remaining range, "23-38"; an action that is
    not a number in it is invalid, costs a turn and is answered with '!'.
    """

    def __init__(self, max_turns: int, noise: float = 0.3) -> None:
        """Prepare an episode of at most `max_turns` guesses.

        Args:
            max_turns: guesses allowed.
            noise: chance that a demonstration guesses any number instead of the middle of the remaining range.
        """
        super().__init__(max_turns)
        self.noise = noise
        self.low = self.high = self.hidden = 0
        self.found = False
        self._all = (0, 0)

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Hide the number."""
        self.low, self.high, self.hidden = int(columns["low"]), int(columns["high"]), int(columns["hidden"])
        self._all = self.low, self.high

    @property
    def state(self) -> str:
        """The remaining range."""
        return f"{self.low}-{self.high}"

    @property
    def legal(self) -> tuple[str, ...]:
        """The numbers that remain possible."""
        return tuple(map(str, range(self.low, self.high + 1)))

    @property
    def correct(self) -> bool:
        """True if the number was found."""
        return self.found

    def act(self, action: str) -> Outcome:
        """Compare the guess with the hidden number: '<' says that the hidden one is smaller."""
        if action not in self.legal:
            return Outcome("!", valid=False)
        guess = int(action)
        if guess == self.hidden:
            self.low = self.high = guess
            self.found = True
            return Outcome("=", reward=1.0, ended=True)
        if self.hidden < guess:
            self.high = guess - 1
            return Outcome("<")
        self.low = guess + 1
        return Outcome(">")

    def demonstrate(self, rng: random.Random) -> str:
        """Guess the middle of the remaining range, or with a certain chance any number, even one that is ruled out."""
        return str(rng.randint(*self._all) if rng.random() < self.noise else (self.low + self.high) // 2)
