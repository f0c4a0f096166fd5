"""Tasks on sequences: sorting digits, reversing letters, splitting numbers into sums."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import ClassVar

from pydantic import Field, model_validator

from grouprl.core.hashing import generator
from grouprl.records.examples import Columns, Example, Split
from grouprl.rewards import Reward, exact_match
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task

LETTERS = "abcdefghij"


@register_task("sorting")
class Sorting(GeneratedTask):
    """Write the given digits in ascending order.

    The prompt is "3141592>". A demonstration picks the smallest remaining digit, or with a certain chance any of them.
    """

    levels = tuple({"length": length} for length in (4, 6, 7, 8, 10, 14))

    length: int = Field(7, ge=2, le=64, description="digits to sort")
    noise: float = Field(0.5, ge=0, le=1, description="chance that a demonstration picks any digit left")

    alphabet: ClassVar[str] = "0123456789>"
    """Digits and '>'."""

    @property
    def max_new_tokens(self) -> int:
        """The token budget: the completion, its end, and one more."""
        return self.length + 2

    @property
    def reward(self) -> Reward:
        """1 iff the completion is the sorted digits."""
        return exact_match

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return random digits."""
        digits = "".join(rng.choices("0123456789", k=self.length))
        return f"{digits}>", {"answer": "".join(sorted(digits))}

    def content(self, prompt: str) -> str:
        """Return the sorted digits, so that no completion is in both splits."""
        return "".join(sorted(prompt[:-1]))

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Pick digit after digit, often not the smallest."""
        left, picked = sorted(str(example.prompt)[:-1]), ""
        while left:
            position = rng.randrange(len(left)) if rng.random() < self.noise else 0
            picked += left.pop(position)
        return picked

    def solve(self, example: Example) -> str:
        """Sort the digits."""
        return "".join(sorted(str(example.prompt)[:-1]))

    def variants(self, example: Example) -> tuple[Example, ...]:
        """Return the prompt, and the prompt with its digits reversed."""
        backwards = f"{str(example.prompt)[-2::-1]}>"
        return example, replace(example, id=f"{example.id}/backwards", prompt=backwards)


@register_task("reverse")
class Reverse(GeneratedTask):
    """Write the given letters backwards.

    The prompt is "gdbafc>". In a demonstration each letter is random with a small chance. With `shortest` prompts have
    different lengths; with `hinted` some begin with the first letters of their completion, "cfa>gdbafc>".
    """

    levels = tuple({"length": length} for length in (4, 6, 8, 12, 16, 24))

    length: int = Field(6, ge=2, le=64, description="letters to reverse")
    shortest: int | None = Field(None, ge=1, description="letters of the shortest prompts; none: all are equally long")
    noise: float = Field(0.15, ge=0, le=1, description="chance that a letter of a demonstration is random")
    hinted: float = Field(0.0, ge=0, le=1, description="share of the prompts that come with a hint")

    alphabet: ClassVar[str] = f"{LETTERS}>"
    """The letters a..j and '>'."""

    @model_validator(mode="after")
    def _ordered(self) -> Reverse:
        if self.shortest is not None and self.shortest > self.length:
            raise ValueError(f"shortest is {self.shortest}, but length is only {self.length}. Lower shortest")
        return self

    @property
    def max_new_tokens(self) -> int:
        """The token budget: the completion, its end, and one more."""
        return self.length + 2

    @property
    def reward(self) -> Reward:
        """1 iff the completion is the letters backwards."""
        return exact_match

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return random letters."""
        length = self.length if self.shortest is None else rng.randint(self.shortest, self.length)
        letters = "".join(rng.choices(LETTERS, k=length))
        return f"{letters}>", {"answer": letters[::-1]}

    def content(self, prompt: str) -> str:
        """Return the prompt without the hint before its letters."""
        return f"{prompt.split('>')[-2]}>"

    def example(self, split: Split, index: int) -> Example:
        """Return prompt `index` of a split; with mixed lengths its level is the number of letters."""
        example = super().example(split, index)
        if self.shortest is not None:
            example = replace(example, level=len(example.columns["answer"]))
        rng = generator(self.seed, "hint", example.id)
        if rng.random() >= self.hinted:
            return example
        return replace(example, prompt=self.with_hint(example, rng.choice(self.hints(example))))

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Write the letters backwards, some of them wrong, except those that a hint gives."""
        *given, _, _ = str(example.prompt).split(">")
        known = len("".join(given))
        right = self.solve(example)
        letters = (rng.choice(LETTERS) if rng.random() < self.noise else x for x in right[known:])
        return right[:known] + "".join(letters)

    def solve(self, example: Example) -> str:
        """Write the letters backwards."""
        return str(example.prompt).split(">")[-2][::-1]


@register_task("summands")
class Summands(GeneratedTask):
    """Write two numbers that add up to the given one: a prompt with many correct completions.

    The prompt is "17=", correct completions are "1+16", "2+15" … "16+1". A demonstration writes any of them, sometimes
    with a wrong second number.
    """

    levels = tuple({"largest": largest} for largest in (20, 30, 40, 50, 70, 99))

    largest: int = Field(50, ge=10, le=99, description="largest number to be written")
    noise: float = Field(0.3, ge=0, le=1, description="chance that a demonstration's second number is wrong")

    max_new_tokens: ClassVar[int] = 7
    """The token budget: two numbers of two digits, a plus, the end, and one more."""
    alphabet: ClassVar[str] = "0123456789+="
    """Digits, '+' and '='."""

    @property
    def reward(self) -> Reward:
        """1 iff the completion is a correct sum of two positive numbers."""
        return adds_up

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a number."""
        total = rng.randint(4, self.largest)
        return f"{total}=", {"answer": total}

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Write one of the sums, sometimes wrong."""
        total = int(example.columns["answer"])
        first = rng.randint(1, total - 1)
        second = rng.randint(1, total - 1) if rng.random() < self.noise else total - first
        return f"{first}+{second}"

    def solve(self, example: Example) -> str:
        """Write the sum of the two most equal numbers."""
        total = int(example.columns["answer"])
        return f"{total // 2}+{total - total // 2}"


def adds_up(completion: str, *, answer: int) -> float:
    """Return 1 iff the completion is "a+b" with positive whole numbers a and b that add up to `answer`."""
    found = re.fullmatch(r"([1-9][0-9]{0,99})\+([1-9][0-9]{0,99})", completion.strip())
    return float(found is not None and int(found[1]) + int(found[2]) == answer)
