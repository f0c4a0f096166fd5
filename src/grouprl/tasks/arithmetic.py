"""Addition, multiplication and modular chains, with scratchpads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from grouprl.rewards import Reward, number_after_bar
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task
from grouprl.tasks.task import Question


@register_task("addition")
class Addition(GeneratedTask):
    """Add two numbers; working it out from the right pays, blurting forgets the carries.

    The prompt is "47+85=". A worked demonstration writes, from the right, carry and digit of every place and then the
    sum: "1213|132". A blurted one forgets the carries: "|022". What follows the last '|' counts.
    """

    levels = tuple({"digits": digits} for digits in (1, 2, 3, 4, 6, 8))

    digits: int = Field(2, ge=1, le=18, description="digits of each number")
    think: float = Field(0.3, ge=0, le=1, description="share of demonstrations that work the sum out")
    noise: float = Field(0.0, ge=0, le=1, description="chance that a worked place holds a random sum")

    @property
    def max_new_tokens(self) -> int:
        """Room for the scratchpad, twice per place, and for going astray."""
        return 5 * self.digits + 6

    @property
    def alphabet(self) -> str:
        """Digits, '+', '=' and '|'."""
        return "0123456789+=|"

    @property
    def reward(self) -> Reward:
        """1 iff the number after the last '|' is the sum."""
        return number_after_bar

    def draw(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """Return two random numbers to add."""
        a, b = rng.randrange(10**self.digits), rng.randrange(10**self.digits)
        return f"{a:0{self.digits}d}+{b:0{self.digits}d}=", {"answer": str(a + b)}

    def content(self, prompt: str) -> str:
        """Return the numbers in order, so that a sum and its mirror image are in the same split."""
        return "+".join(sorted(prompt[:-1].split("+")))

    def demonstrate(self, question: Question, rng: random.Random) -> str:
        """Work the sum out in a share of cases, else blurt it."""
        if rng.random() < self.think:
            return _worked_sum(_places(question), rng, self.noise)
        return "|0" + "".join(str((x + y) % 10) for x, y in _places(question))[::-1]

    def solve(self, question: Question) -> str:
        """Work the sum out."""
        return _worked_sum(_places(question), random.Random(0), noise=0)


def _places(question: Question) -> Iterator[tuple[int, int]]:
    """Yield the pairs of digits to add, from the right."""
    a, b = str(question.prompt)[:-1].split("+")
    return ((int(x), int(y)) for x, y in zip(reversed(a), reversed(b), strict=True))


def _worked_sum(places: Iterator[tuple[int, int]], rng: random.Random, noise: float) -> str:
    carry, pad, digits = 0, "", ""
    for x, y in places:
        total = rng.randrange(20) if rng.random() < noise else x + y + carry
        carry, digit = divmod(total, 10)
        pad += f"{carry}{digit}"
        digits = f"{digit}{digits}"
    return f"{pad}|{carry}{digits}"
