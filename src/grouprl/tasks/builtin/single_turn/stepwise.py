"""A task whose completions are numbered steps."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import ClassVar

from pydantic import Field

from grouprl.records.examples import Columns, Example
from grouprl.rewards import Reward
from grouprl.rewards.by_task.stepwise import line_step_rewards
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task


@register_task("steps")
class StepsTask(GeneratedTask):
    """Add numbers in numbered steps: repeat the sum, write the running totals, then the answer.

    The prompt is "7+5+8>", a completion four lines: "?7+5+8", "1:12", "2:20", "=20". Key steps are the running totals.
    """

    levels = tuple(
        {"terms": terms, "largest": largest} for terms, largest in ((2, 9), (3, 9), (4, 9), (4, 20), (5, 50), (6, 99))
    )

    terms: int = Field(3, ge=2, le=9, description="numbers to add")
    largest: int = Field(9, ge=1, le=99, description="the largest number")
    noise: float = Field(0.15, ge=0, le=1, description="chance that a demonstrated total is off by one")
    disorder: float = Field(0.3, ge=0, le=1, description="chance that a demonstration leaves out a line")

    alphabet: ClassVar[str] = "0123456789+>?:=\n"
    """Digits and the signs of sums and lines."""

    @property
    def max_new_tokens(self) -> int:
        """The token budget: the sum again, a line for each total, the answer, the end, and one more."""
        digits = len(str(self.largest))
        return 1 + self.terms * (digits + 1) + (self.terms - 1) * (3 + digits + 1) + digits + 4

    @property
    def reward(self) -> Reward:
        """The reward for accuracy, key steps and their order, each up to 1."""
        return line_step_rewards

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return numbers to add."""
        terms = [rng.randint(1, self.largest) for _ in range(self.terms)]
        totals = [str(total) for total in accumulate(terms)][1:]
        return f"{'+'.join(map(str, terms))}>", {"answer": totals[-1], "key_steps": totals}

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Return the lines, some totals off by one, sometimes one line left out."""
        terms, total = [int(term) for term in str(example.prompt)[:-1].split("+")], 0
        totals: list[int] = []
        for term in terms:
            total += term + (rng.choice((-1, 1)) if totals and rng.random() < self.noise else 0)
            totals.append(total)
        lines = _lines(example, [str(each) for each in totals[1:]])
        if rng.random() < self.disorder:
            del lines[rng.randrange(len(lines))]
        return "\n".join(lines)

    def solve(self, example: Example) -> str:
        """Return all lines without a mistake."""
        return "\n".join(_lines(example, example.columns["key_steps"]))


def _lines(example: Example, totals: list[str]) -> list[str]:
    numbered = (f"{number}:{total}" for number, total in enumerate(totals, 1))
    return [f"?{str(example.prompt)[:-1]}", *numbered, f"={totals[-1]}"]
