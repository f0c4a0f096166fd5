"""A hidden word, guessed with a hint for each letter."""

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
    """One of a few words is hidden; a first guess and its hint are shown, "37:bad-+~>", and more guesses follow.

    Columns: `words`, `hidden`, `first`. Finding the word earns the number of guesses allowed minus those that failed,
    and nothing else earns a reward: this is LMRL-Gym's -1 for every failed guess (Abdulhai et al. 2023), plus a
    constant. Text that is none of the words is invalid and answered with "!>". The state is the words still possible.
    """

    def __init__(self, max_turns: int, noise: float = 0.3) -> None:
        """Prepare an episode of at most `max_turns` guesses; `noise` is the chance that a demonstration guesses any
        word.
        """
        super().__init__(max_turns)
        self.noise = noise
        self.words: list[str] = []
        self.possible: list[str] = []
        self.hidden = ""
        self.found = False

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Hide a word, and remove the words that the first guess rules out."""
        self.words, self.hidden = list(columns["words"]), columns["hidden"]
        self.possible = self._agreeing(self.words, columns["first"])

    @property
    def state(self) -> str:
        """The words that the hints leave possible."""
        return " ".join(self.possible)

    @property
    def legal(self) -> tuple[str, ...]:
        """All words."""
        return tuple(self.words)

    @property
    def correct(self) -> bool:
        """True if the word was found."""
        return self.found

    def act(self, action: str) -> Outcome:
        """Guess."""
        if action not in self.words:
            return Outcome("!>", valid=False)
        self.found, self.possible = action == self.hidden, self._agreeing(self.possible, action)
        left = self.max_turns - self.turns
        return Outcome(f"{marks(action, self.hidden)}>", float(self.found * left), ended=self.found)

    def demonstrate(self, rng: random.Random) -> str:
        """Return a word that the hints leave possible, or with a certain chance any word."""
        return rng.choice(self.words if rng.random() < self.noise else self.possible)

    def _agreeing(self, words: list[str], guess: str) -> list[str]:
        """Return the words that fit the hint for a guess."""
        return [word for word in words if marks(guess, word) == marks(guess, self.hidden)]
