"""The task of guessing a word by hints."""

from __future__ import annotations

import random
from typing import Any

from pydantic import Field

from grouprl.envs.wordle import Wordle
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.games import POOR
from grouprl.tasks.registry import register_task
from grouprl.tasks.task import Question

LETTERS = "abcdefgh"


@register_task("wordle")
class WordleTask(EnvironmentTask):
    """Guess a hidden word of a list; every guess is answered with a sign per letter; the fewer fail, the better.

    The prompt is "bad cab fed>", an action a word. "+" is a letter in its place, "~" one that belongs elsewhere.
    """

    levels = tuple({"words": words} for words in (3, 4, 6, 8, 12, 16))

    words: int = Field(6, ge=2, le=24, description="words that it may be")
    letters: int = Field(3, ge=2, le=5, description="letters of a word")
    turns: int = Field(4, ge=1, description="guesses allowed")
    noise: float = Field(0.5, ge=0, le=1, description=POOR)

    @property
    def max_turns(self) -> int:
        """The guesses allowed."""
        return self.turns

    @property
    def max_new_tokens(self) -> int:
        """A word, its end, and one more."""
        return self.letters + 2

    @property
    def alphabet(self) -> str:
        """Letters and signs."""
        return f"{LETTERS} >+~-!"

    def environment(self) -> Wordle:
        """Return a fresh episode."""
        return Wordle(self.max_turns, self.noise)

    def draw(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """Return different words, one of them hidden."""
        words: dict[str, None] = {}
        while len(words) < self.words:
            words["".join(rng.choices(LETTERS, k=self.letters))] = None
        return f"{' '.join(words)}>", {"words": list(words), "hidden": rng.choice(list(words))}

    def solve(self, question: Question) -> str:
        """Return the hidden word."""
        return str(question.columns["hidden"])
