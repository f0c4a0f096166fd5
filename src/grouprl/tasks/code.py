"""Programs small enough for a model that knows nothing: judged by running them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from grouprl.rewards import Reward
from grouprl.rewards.code import compiles, passes_tests
from grouprl.sandbox import SandboxSettings
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task
from grouprl.tasks.task import Question

HIDDEN = (3, 7, 10, 25)
"""Where the function is tried out; none of them is ever shown."""


@dataclass(frozen=True)
class ExpressionReward:
    """1 iff an expression in x has the values that the hidden tests expect, found by running it in the sandbox."""

    sandbox: SandboxSettings

    def __call__(self, completion: str, tests: Sequence[Sequence[int]]) -> float:
        """Run the expression at every hidden x; one that does not compile is wrong without a run."""
        code = f"def f(x):\n    return ({completion}\n)"
        if not completion.strip() or not compiles(code):
            return 0.0
        called = [{"arguments": [x], "result": y} for x, y in tests]
        return passes_tests(code, called, "f", self.sandbox)["correct"]


@register_task("code")
class CodeTask(GeneratedTask):
    """Write an expression for a function that is known at a few points; hidden points decide, in the sandbox.

    The prompt is "0:3,1:5>", the values at 0 and 1 of a line; a right answer is "2*x+3", and so is "3+x*2" or
    "x+x+3". A poor demonstration takes a value for a coefficient: "5*x+3". Level by level numbers grow, and lines
    become parabolas.
    """

    levels = tuple(
        {"degree": degree, "largest": largest} for degree, largest in ((1, 9), (1, 19), (1, 49), (2, 5), (2, 9), (2, 19))
    )

    degree: int = Field(1, ge=1, le=2, description="1: lines, 2: parabolas")
    largest: int = Field(9, ge=4, le=99, description="largest coefficient")
    noise: float = Field(0.5, ge=0, le=1, description="chance that a demonstrated coefficient is a poor one")
    sandbox: SandboxSettings = Field(
        SandboxSettings(seconds=2, processes=1), description="limits of a run, and the lowest level that will do"
    )

    @property
    def max_new_tokens(self) -> int:
        """Room for the longest expression and for going astray."""
        return (self.degree + 1) * (len(str(4 * self.largest)) + 5)

    @property
    def alphabet(self) -> str:
        """Digits and the signs of points and expressions."""
        return "0123456789x*+-:,>"

    @property
    def reward(self) -> Reward:
        """1 iff the expression is right at the hidden points."""
        return ExpressionReward(self.sandbox)

    def draw(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """Return a few values of a function with random coefficients."""
        coefficients = [rng.randint(0, self.largest) for _ in range(self.degree + 1)]
        shown = ",".join(f"{x}:{_value(coefficients, x)}" for x in range(self.degree + 1))
        return f"{shown}>", {"tests": [[x, _value(coefficients, x)] for x in HIDDEN]}

    def demonstrate(self, question: Question, rng: random.Random) -> str:
        """Return an expression; with a certain chance a value stands where a coefficient should."""
        values = _shown(question)
        coefficients = _coefficients(values)
        if rng.random() < self.noise:
            coefficients[rng.randrange(1, len(coefficients))] = rng.choice([values[-1], rng.randint(0, self.largest)])
        return _spelt(coefficients)

    def solve(self, question: Question) -> str:
        """Return the expression with its coefficients from the highest down."""
        return _spelt(_coefficients(_shown(question)))


def _value(coefficients: Sequence[int], x: int) -> int:
    """Return the value of a polynomial, its constant first."""
    return sum(factor * x**power for power, factor in enumerate(coefficients))


def _shown(question: Question) -> list[int]:
    return [int(point.partition(":")[2]) for point in str(question.prompt)[:-1].split(",")]


def _coefficients(values: Sequence[int]) -> list[int]:
    """Return the constant first, from the values at 0, 1 and, for a parabola, 2."""
    constant, rest = values[0], [value - values[0] for value in values[1:]]
    if len(rest) == 1:
        return [constant, rest[0]]
    square = (rest[1] - 2 * rest[0]) // 2
    return [constant, rest[0] - square, square]


def _spelt(coefficients: Sequence[int]) -> str:
    terms = [f"{factor}{'*x' * power}" for power, factor in enumerate(coefficients)]
    return "+".join(reversed(terms))
