"""Sorting digits and reversing letters."""

from __future__ import annotations

import random
from typing import Any

from pydantic import Field

from grouprl.rewards import Reward, exact_match
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task
from grouprl.tasks.task import Question

LETTERS = "abcdefghij"


@register_task("sorting")
class Sorting(GeneratedTask):
    """Write the given digits in ascending order.

    The prompt is "3141592>". A demonstration picks the smallest digit left, or with a certain chance any of them.
    """

    levels = tuple({"length": length} for length in (4, 6, 7, 8, 10, 14))

    length: int = Field(7, ge=2, le=64, description="digits to sort")
    noise: float = Field(0.5, ge=0, le=1, description="chance that a demonstration picks any digit left")

    @property
    def max_new_tokens(self) -> int:
        """The answer, its end, and one more."""
        return self.length + 2

    @property
    def alphabet(self) -> str:
        """Digits and '>'."""
        return "0123456789>"

    @property
    def reward(self) -> Reward:
        """1 iff the answer is the sorted digits."""
        return exact_match

    def draw(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """Return random digits."""
        digits = "".join(rng.choices("0123456789", k=self.length))
        return f"{digits}>", {"answer": "".join(sorted(digits))}

    def content(self, prompt: str) -> str:
        """Return the answer, so that no answer is in both splits."""
        return "".join(sorted(prompt[:-1]))

    def demonstrate(self, question: Question, rng: random.Random) -> str:
        """Pick digit after digit, often not the smallest."""
        left, picked = sorted(str(question.prompt)[:-1]), ""
        while left:
            position = rng.randrange(len(left)) if rng.random() < self.noise else 0
            picked += left.pop(position)
        return picked

    def solve(self, question: Question) -> str:
        """Sort the digits."""
        return "".join(sorted(str(question.prompt)[:-1]))


@register_task("reverse")
class Reverse(GeneratedTask):
    """Write the given letters backwards.

    The prompt is "gdbafc>". In a demonstration each letter is random with a small chance.
    """

    levels = tuple({"length": length} for length in (4, 6, 8, 12, 16, 24))

    length: int = Field(6, ge=2, le=64, description="letters to reverse")
    noise: float = Field(0.15, ge=0, le=1, description="chance that a letter of a demonstration is random")

    @property
    def max_new_tokens(self) -> int:
        """The answer, its end, and one more."""
        return self.length + 2

    @property
    def alphabet(self) -> str:
        """The letters a..j and '>'."""
        return f"{LETTERS}>"

    @property
    def reward(self) -> Reward:
        """1 iff the answer is the letters backwards."""
        return exact_match

    def draw(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """Return random letters."""
        letters = "".join(rng.choices(LETTERS, k=self.length))
        return f"{letters}>", {"answer": letters[::-1]}

    def demonstrate(self, question: Question, rng: random.Random) -> str:
        """Write the letters backwards, some of them wrong."""
        return "".join(rng.choice(LETTERS) if rng.random() < self.noise else x for x in self.solve(question))

    def solve(self, question: Question) -> str:
        """Write the letters backwards."""
        return str(question.prompt)[:-1][::-1]
