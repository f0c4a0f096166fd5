"""Countdown: reach a target from given numbers."""

from __future__ import annotations

import random
import re
from typing import ClassVar

from pydantic import Field

from grouprl.records.examples import Columns, Example
from grouprl.rewards import Reward, reaches_target
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task

SIGNS = "+-*"
LARGEST_TARGET = 99


@register_task("countdown")
class Countdown(GeneratedTask):
    """Write an expression that uses every given number once and reaches the target.

    The prompt is "2,3,7:13=", a completion "2*3+7" (the usual precedence; + - * / and brackets count). A demonstration
    is an expression that hits the target in a share of cases and otherwise a random one of the same numbers.
    """

    levels = tuple(
        {"numbers": numbers, "largest": largest}
        for numbers, largest in ((2, 20), (3, 9), (3, 20), (4, 9), (4, 20), (5, 20))
    )

    numbers: int = Field(2, ge=2, le=8, description="how many numbers are given")
    largest: int = Field(20, ge=3, le=99, description="the largest number that may be given")
    hit: float = Field(0.3, ge=0, le=1, description="share of demonstrations that are meant to hit the target")

    alphabet: ClassVar[str] = "0123456789+-*/(),:="
    """Digits, signs, brackets and the punctuation of the prompt."""

    @property
    def max_new_tokens(self) -> int:
        """The token budget: numbers, signs and a few brackets."""
        return self.numbers * (len(str(self.largest)) + 1) + 6

    @property
    def reward(self) -> Reward:
        """1 iff the expression uses every number once and equals the target."""
        return reaches_target

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return numbers and a target that one of their expressions reaches."""
        while True:
            numbers = [rng.randint(1, self.largest) for _ in range(self.numbers)]
            answer, target = _random_expression(numbers, rng)
            if 0 <= target <= LARGEST_TARGET:
                break
        numbers.sort()
        prompt = f"{','.join(map(str, numbers))}:{target:02d}="
        return prompt, {"numbers": tuple(numbers), "target": target, "answer": answer}

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Hit the target in a share of cases, otherwise write any expression."""
        if rng.random() < self.hit:
            return self.solve(example)
        return _random_expression(list(example.columns["numbers"]), rng)[0]

    def solve(self, example: Example) -> str:
        """Return the expression that the target was made from."""
        return str(example.columns["answer"])


def _random_expression(numbers: list[int], rng: random.Random) -> tuple[str, int]:
    """Return an expression of the numbers in random order with random signs, and its value."""
    order = rng.sample(numbers, len(numbers))
    text = str(order[0]) + "".join(rng.choice(SIGNS) + str(number) for number in order[1:])
    return text, _value(text)


def _value(text: str) -> int:
    """Return the value of a sum of products: the generator's own form, without brackets."""
    value = 0
    for sign, product in re.findall(r"([+-]?)([\d*]+)", text):
        term = 1
        for factor in product.split("*"):
            term *= int(factor)
        value += -term if sign == "-" else term
    return value
