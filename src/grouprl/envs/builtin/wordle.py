"""A hidden word, guessed with hints letter by letter."""

from __future__ import annotations

import random
from collections import Counter

from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns

PLACED, ELSEWHERE, ABSENT = "+~-"


def marks(guess: str, hidden: str) -> str:
    """Return a sign per letter: "+" in its place, "~" elsewhere in the word, "-" not in it, or not that often."""
    left = Counter(theirs for ours, theirs in zip(guess, hidden, strict=True) if ours != theirs)
    signs = ""
    for ours, theirs in zip(guess, hidden, strict=True):
        found = ours != theirs and left[ours] > 0
        left[ours] -= found
        signs += PLACED if ours == theirs else ELSEWHERE if found else ABSENT
    return signs


class Wordle(Game):
    """One of a few words is hidden; a first guess and its hint are shown, "37:bad-+~>", and more can be made.

    Columns: `words`, `hidden`, `first`. Finding the word earns the guesses allowed less those that failed, nothing else
    does: LMRL-Gym's -1 for every guess that fails (Abdulhai et al. 2023), plus a constant. What is none of the words is
    invalid and answered with "!>". The state is what the hints leave possible.
    """

    def __init__(self, max_turns: int, noise: float = 0.3) -> None:
        """Prepare an episode of at most `max_turns` guesses; `noise` is the chance of a thoughtless demonstration."""
        super().__init__(max_turns)
        self.noise = noise
        self.words: list[str] = []
        self.possible: list[str] = []
        self.hidden = ""
        self.found = False

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Hide a word, and leave out what the first guess rules out."""
        self.words, self.hidden = list(columns["words"]), columns["hidden"]
        self.possible = self._agreeing(self.words, columns["first"])

    @property
    def state(self) -> str:
        """The words that the hints allow."""
        return " ".join(self.possible)

    @property
    def legal(self) -> tuple[str, ...]:
        """The words."""
        return tuple(self.words)

    @property
    def correct(self) -> bool:
        """Whether the word was found."""
        return self.found

    def act(self, action: str) -> Outcome:
        """Guess."""
        if action not in self.words:
            return Outcome("!>", valid=False)
        self.found, self.possible = action == self.hidden, self._agreeing(self.possible, action)
        left = self.max_turns - self.turns
        return Outcome(f"{marks(action, self.hidden)}>", float(self.found * left), ended=self.found)

    def demonstrate(self, rng: random.Random) -> str:
        """Guess a word that the hints allow, or with a certain chance any."""
        return rng.choice(self.words if rng.random() < self.noise else self.possible)

    def _agreeing(self, words: list[str], guess: str) -> list[str]:
        """Return the words that the hint for a guess allows."""
        return [word for word in words if marks(guess, word) == marks(guess, self.hidden)]
