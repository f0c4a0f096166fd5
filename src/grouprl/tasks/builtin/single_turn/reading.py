"""Numbers to be read: a count of letters, and a chart in words."""

from __future__ import annotations

import random
from typing import ClassVar

from pydantic import Field

from grouprl.records.examples import Columns, Example
from grouprl.rewards import Reward, exact_match, number_after_bar
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task


@register_task("counting")
class Counting(GeneratedTask):
    """Count how often a letter occurs among others.

    The prompt is "abbacba:a>", the completion "3", or with thoughts "aaa|3": the counted letters, and then their
    number. A demonstration is sometimes off by a few; without its thought it gives the same number.
    """

    levels = tuple({"length": length} for length in (8, 12, 16, 24, 32, 48))

    length: int = Field(16, ge=2, le=99, description="letters in the crowd, at most; at least half of them")
    noise: float = Field(0.6, ge=0, le=1, description="chance that a demonstration is off by one to three")
    think: float = Field(0.0, ge=0, le=1, description="share of demonstrations with a thought; 0: no bar either")

    @property
    def max_new_tokens(self) -> int:
        """The token budget: the thought and the bar, if there are any, two digits, the end, and one more."""
        return 4 + (self.length + 4 if self.think else 0)

    @property
    def alphabet(self) -> str:
        """Letters, digits and the signs around them."""
        return "abc0123456789:>" + ("|" if self.think else "")

    @property
    def reward(self) -> Reward:
        """1 iff the number is right."""
        return number_after_bar if self.think else exact_match

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a text in which letters are not equally frequent."""
        letter, share = rng.choice("abc"), rng.random()
        others = "abc".replace(letter, "")
        length = rng.randint(self.length // 2, self.length)
        crowd = "".join(letter if rng.random() < share else rng.choice(others) for _ in range(length))
        return f"{crowd}:{letter}>", {"answer": str(crowd.count(letter))}

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Count, sometimes wrongly; leave the thought out in a share of cases."""
        said = int(example.columns["answer"])
        if rng.random() < self.noise:
            said = abs(said + rng.choice((-3, -2, -1, 1, 2, 3)))
        return self._spell(example, said, thinking=rng.random() < self.think)

    def solve(self, example: Example) -> str:
        """Return the count, after a thought if thoughts are on."""
        return self._spell(example, int(example.columns["answer"]), thinking=True)

    def _spell(self, example: Example, number: int, *, thinking: bool) -> str:
        """Return a number; with thoughts on, after a bar and, if `thinking`, that many letters."""
        letter = str(example.prompt)[-2]
        return f"{letter * number if thinking else ''}|{number}" if self.think else str(number)


@register_task("chart")
class Chart(GeneratedTask):
    """Read a chart given in words: the value of a bar, or the sum or difference of two.

    The prompt is "a31 b7 c58:c-a>", the completion "27". A demonstration sometimes misreads the last digit.
    """

    levels = tuple(
        {"bars": bars, "operations": operations}
        for bars, operations in ((2, 0), (4, 0), (2, 1), (3, 1), (4, 1), (6, 1))
    )

    bars: int = Field(4, ge=2, le=6, description="bars of the chart")
    operations: int = Field(0, ge=0, le=1, description="1: half of the prompts ask for a sum or difference of two bars")
    noise: float = Field(0.5, ge=0, le=1, description="chance that a demonstration has another last digit")

    max_new_tokens: ClassVar[int] = 6
    """The token budget: a sign, three digits, the end, and one more."""
    alphabet: ClassVar[str] = "abcdef0123456789 :+->"
    """Bars, digits and the signs around them."""

    @property
    def reward(self) -> Reward:
        """1 iff the number is right."""
        return exact_match

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a chart and a prompt about it."""
        names = "abcdef"[: self.bars]
        values = {name: rng.randint(1, 99) for name in names}
        first, second = rng.sample(names, 2)
        asked, answer = first, values[first]
        if self.operations and rng.random() < 0.5:
            sign = rng.choice("+-")
            asked, answer = first + sign + second, values[first] + values[second] * (1 if sign == "+" else -1)
        return f"{' '.join(f'{name}{value}' for name, value in values.items())}:{asked}>", {"answer": str(answer)}

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Read the chart, sometimes with a wrong last digit."""
        right = str(example.columns["answer"])
        return right[:-1] + rng.choice("0123456789") if rng.random() < self.noise else right

    def solve(self, example: Example) -> str:
        """Return the completion."""
        return str(example.columns["answer"])
