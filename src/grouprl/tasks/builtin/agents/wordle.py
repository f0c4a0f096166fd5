"""The task of guessing a word by hints."""

from __future__ import annotations

import random
from functools import cache
from typing import ClassVar

from pydantic import Field

from grouprl.core.hashing import generator
from grouprl.envs.builtin.wordle import Wordle, marks
from grouprl.records.examples import Columns, Example
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.options import POOR
from grouprl.tasks.registry import register_task

LETTERS = "abcdefgh"


@register_task("wordle")
class WordleTask(EnvironmentTask):
    """Guess a hidden word; the reply to a guess has a sign per letter, and fewer failed guesses earn more.

    The words are generated once and not shown. The prompt is "37:bad-+~>", the number of the game and a first guess
    with its hint; an action is a word. "+" marks a letter in its place, "~" one that belongs elsewhere. Held-out games
    have other numbers and the same words.
    """

    levels = tuple({"words": words} for words in (12, 16, 20, 24, 32, 48))

    words: int = Field(20, ge=8, le=96, description="number of words")
    corpus: int = Field(0, description="seed of the made-up words")
    letters: int = Field(3, ge=3, le=5, description="letters of a word")
    turns: int = Field(4, ge=1, description="guesses allowed")
    noise: float = Field(0.5, ge=0, le=1, description=POOR)

    alphabet: ClassVar[str] = f"{LETTERS}0123456789:>+~-!"
    """Letters and signs."""

    @property
    def max_turns(self) -> int:
        """The number of guesses allowed."""
        return self.turns

    @property
    def max_new_tokens(self) -> int:
        """The token budget of a turn: a word, its end, and one more."""
        return self.letters + 2

    def environment(self) -> Wordle:
        """Return a fresh episode."""
        return Wordle(self.max_turns, self.noise)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return the hidden word and a first guess that differs from it."""
        words = vocabulary(self.corpus, self.words, self.letters)
        hidden, first = rng.sample(words, 2)
        return f"{rng.randrange(100):02d}:{first}{marks(first, hidden)}>", {
            "words": list(words),
            "hidden": hidden,
            "first": first,
        }

    def content(self, prompt: str) -> str:
        """Return the number of the game."""
        return prompt.partition(":")[0]

    def solve(self, example: Example) -> str:
        """Return the hidden word."""
        return str(example.columns["hidden"])


@cache
def vocabulary(corpus: int, count: int, letters: int) -> tuple[str, ...]:
    """Return made-up words, all different."""
    rng = generator("words", corpus)
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(rng.choices(LETTERS, k=letters))] = None
    return tuple(words)
