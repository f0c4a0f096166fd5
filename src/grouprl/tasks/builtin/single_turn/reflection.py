"""Completions that are attempted, reflected on, and attempted again."""

from __future__ import annotations

import random
from typing import ClassVar

from pydantic import Field

from grouprl.records.examples import Columns, Example
from grouprl.rewards import Reward
from grouprl.rewards.by_task.reflection import reflection
from grouprl.tasks.builtin.single_turn.arithmetic import Chain
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task


@register_task("reflect")
class Reflect(GeneratedTask):
    """Follow a chain of operations, judge the result, and follow it again.

    The prompt is "7+5*3=", a completion "26|6;y;26|6": running values and the last one, "y" or "n", and both again. A
    demonstration's first attempt is often wrong; its second is wrong less often, and differs only after "n".
    """

    levels = tuple({"length": length} for length in (1, 2, 3, 4, 6, 8))

    length: int = Field(3, ge=1, le=16, description="operations in the chain")
    noise: float = Field(0.3, ge=0, le=1, description="chance that a running value of the first attempt is random")
    blind: float = Field(0.2, ge=0, le=1, description="chance that a demonstration reflects wrongly, or not at all")

    alphabet: ClassVar[str] = "0123456789+-*=|;yn"
    """Digits, the operations, and the signs of completions."""

    @property
    def max_new_tokens(self) -> int:
        """The token budget: two attempts, the reflection, the end, and a few more."""
        return 2 * self.length + 12

    @property
    def reward(self) -> Reward:
        """The reward for the correctness of both attempts, the form and the length: up to 1.6 for a corrected error."""
        return reflection

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a random chain."""
        return self._chain(0).generate(rng)

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Try, reflect, and try again; sometimes reflect wrongly, or stop after the first attempt."""
        first = self._chain(self.noise).demonstrate(example, rng)
        right = first == self._chain(0).solve(example)
        if rng.random() < self.blind:
            if rng.random() < 0.5:
                return first
            right = not right
        second = first if right else self._chain(self.noise / 3).demonstrate(example, rng)
        return f"{first};{'y' if right else 'n'};{second}"

    def solve(self, example: Example) -> str:
        """Write the running values twice."""
        right = self._chain(0).solve(example)
        return f"{right};y;{right}"

    def _chain(self, noise: float) -> Chain:
        return Chain(seed=self.seed, length=self.length, noise=noise)
