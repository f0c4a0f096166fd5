"""Programs small enough for an untrained model, scored by running them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from grouprl.records.examples import Columns, Example
from grouprl.rewards import Reward
from grouprl.rewards.by_task.code import compiles, passes_tests
from grouprl.sandbox import SandboxSettings
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task

HIDDEN = (3, 7, 10, 25)
"""The hidden points at which the function is evaluated; none of them is ever shown."""

PASSED: set[str] = set()
"""Programs with their tests that passed in this process: a trained policy writes the same ones again."""
MOST_PASSED = 1 << 16


@dataclass(frozen=True)
class ExpressionReward:
    """1 iff an expression in x has the values that the hidden tests expect, found by running it in the sandbox."""

    sandbox: SandboxSettings

    def __call__(self, completion: str, tests: Sequence[Sequence[int]]) -> float:
        """Run the expression at every hidden x; one that does not compile is wrong without a run."""
        code = f"def f(x):\n    return ({completion}\n)"
        if not completion.strip() or not compiles(code):
            return 0.0
        known = json.dumps([code, tests])
        if known not in PASSED:
            called = [{"arguments": [x], "result": y} for x, y in tests]
            if not passes_tests(code, called, "f", self.sandbox)["correct"]:
                return 0.0  # not remembered: it may have been late because the machine was busy
            if len(PASSED) >= MOST_PASSED:
                PASSED.clear()
            PASSED.add(known)
        return 1.0


@register_task("code")
class CodeTask(GeneratedTask):
    """Write an expression for a polynomial from one of its values; hidden points decide, in the sandbox.

    The prompt is "10:253>", the value at 10, whose digits are the coefficients; a correct completion is "2*x*x+5*x+3",
    and so is "x*5+3+2*x*x". A poor demonstration, and most are, reads the digits in the wrong order: "3*x*x+5*x+2".
    With two digits the value at 100 is shown.
    """

    levels = tuple({"degree": degree, "digits": digits} for digits in (1, 2) for degree in (1, 2, 3))

    degree: int = Field(2, ge=1, le=4, description="highest power of x")
    digits: int = Field(1, ge=1, le=3, description="digits of a coefficient")
    noise: float = Field(0.6, ge=0, le=1, description="chance that a demonstration has its coefficients reversed")
    sandbox: SandboxSettings = Field(
        SandboxSettings(seconds=2, processes=1), description="limits of a run, and the lowest acceptable level"
    )

    alphabet: ClassVar[str] = "0123456789x*+-:>"
    """Digits and the signs of values and expressions."""

    @property
    def max_new_tokens(self) -> int:
        """The token budget: the longest expression, and spare tokens for mistakes."""
        return (self.degree + 1) * (self.digits + 1) + self.degree * (self.degree + 1) + 6

    @property
    def reward(self) -> Reward:
        """1 iff the expression is right at the hidden points."""
        return ExpressionReward(self.sandbox)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a value of a polynomial with random coefficients, the first of which is not 0."""
        base = 10**self.digits
        coefficients = [rng.randrange(base) for _ in range(self.degree)] + [rng.randrange(1, base)]
        shown = f"{base}:{_value(coefficients, base)}>"
        return shown, {"tests": [[x, _value(coefficients, x)] for x in HIDDEN]}

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Return an expression; with a certain chance its coefficients are in the wrong order."""
        coefficients = self._coefficients(example)
        return _spelt(coefficients[::-1] if rng.random() < self.noise else coefficients)

    def solve(self, example: Example) -> str:
        """Return the expression with its powers from the highest down."""
        return _spelt(self._coefficients(example))

    def _coefficients(self, example: Example) -> list[int]:
        """Return the coefficients, the constant first."""
        base, _, value = str(example.prompt)[:-1].partition(":")
        return [int(value) // int(base) ** power % int(base) for power in range(self.degree + 1)]


def _value(coefficients: Sequence[int], x: int) -> int:
    """Return the value of a polynomial, its constant first."""
    return sum(factor * x**power for power, factor in enumerate(coefficients))


def _spelt(coefficients: Sequence[int]) -> str:
    terms = [f"{factor}{'*x' * power}" for power, factor in enumerate(coefficients)]
    return "+".join(reversed(terms))
