"""Addition, multiplication and modular chains, with scratchpads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from grouprl.records.examples import Columns, Example
from grouprl.rewards import Reward, number_after_bar
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task


@register_task("addition")
class Addition(GeneratedTask):
    """Add two numbers; working the sum out from the right succeeds, while blurting forgets the carries.

    The prompt is "47+85=". A worked demonstration writes, from the right, the carry and the digit of every place, and
    then the sum: "1213|132". A blurted one forgets the carries: "|022". The text after the last '|' counts.
    """

    levels = tuple({"digits": digits} for digits in (1, 2, 3, 4, 6, 8))

    digits: int = Field(2, ge=1, le=18, description="digits of each number")
    think: float = Field(0.3, ge=0, le=1, description="share of demonstrations that work the sum out")
    noise: float = Field(0.0, ge=0, le=1, description="chance that a worked place holds a random sum")

    alphabet: ClassVar[str] = "0123456789+=|"
    """Digits, '+', '=' and '|'."""

    @property
    def max_new_tokens(self) -> int:
        """The token budget: the scratchpad, twice per place, and spare tokens for mistakes."""
        return 5 * self.digits + 6

    @property
    def reward(self) -> Reward:
        """1 iff the number after the last '|' is the sum."""
        return number_after_bar

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return two random numbers to add."""
        a, b = rng.randrange(10**self.digits), rng.randrange(10**self.digits)
        return f"{a:0{self.digits}d}+{b:0{self.digits}d}=", {"answer": str(a + b)}

    def content(self, prompt: str) -> str:
        """Return the numbers in order, so that a sum and its mirror image are in the same split."""
        return "+".join(sorted(prompt[:-1].split("+")))

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Work the sum out in a share of cases, otherwise blurt it."""
        if rng.random() < self.think:
            return _worked_sum(_places(example), rng, self.noise)
        return "|0" + "".join(str((x + y) % 10) for x, y in _places(example))[::-1]

    def solve(self, example: Example) -> str:
        """Work the sum out."""
        return _worked_sum(_places(example), random.Random(0), noise=0)

    def variants(self, example: Example) -> tuple[Example, ...]:
        """Return the sum and the one with its numbers in the other order."""
        return swapped(example, "+")


def swapped(example: Example, sign: str) -> tuple[Example, Example]:
    """Return a prompt "a+b=" and the same with its numbers in the other order."""
    a, b = str(example.prompt)[:-1].split(sign)
    return example, replace(example, id=f"{example.id}/swapped", prompt=f"{b}{sign}{a}=")


def _places(example: Example) -> Iterator[tuple[int, int]]:
    """Yield the pairs of digits to add, from the right."""
    a, b = str(example.prompt)[:-1].split("+")
    return ((int(x), int(y)) for x, y in zip(reversed(a), reversed(b), strict=True))


def _worked_sum(places: Iterator[tuple[int, int]], rng: random.Random, noise: float) -> str:
    carry, pad, digits = 0, "", ""
    for x, y in places:
        total = rng.randrange(20) if rng.random() < noise else x + y + carry
        carry, digit = divmod(total, 10)
        pad += f"{carry}{digit}"
        digits = f"{digit}{digits}"
    return f"{pad}|{carry}{digits}"


@register_task("multiplication")
class Multiplication(GeneratedTask):
    """Multiply two numbers; working the product out from the right succeeds, while blurting forgets the carries.

    The prompt is "47*36=". A worked demonstration writes, for every digit of the second number from the right, the
    carry and the digit of every product and, after ':', the running total; then the next digit after ';'. The last
    total comes after '|': "4228:0282;2114|1692". A blurted one multiplies place by place without carries.
    """

    levels = tuple({"digits": digits, "by": by} for digits, by in ((2, 1), (3, 1), (2, 2), (3, 2), (3, 3), (4, 4)))

    digits: int = Field(2, ge=1, le=9, description="digits of the first number")
    by: int = Field(1, ge=1, le=9, description="digits of the second number")
    think: float = Field(0.4, ge=0, le=1, description="share of demonstrations that work the product out")
    noise: float = Field(0.0, ge=0, le=1, description="chance that a worked place holds a random product")

    alphabet: ClassVar[str] = "0123456789*=:;|"
    """Digits and the signs of the scratchpad."""

    @property
    def max_new_tokens(self) -> int:
        """The token budget: the scratchpad, and spare tokens for mistakes."""
        return self.by * (3 * self.digits + self.by + 4) + 6

    @property
    def reward(self) -> Reward:
        """1 iff the number after the last '|' is the product."""
        return number_after_bar

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return two random numbers to multiply."""
        a, b = rng.randrange(10**self.digits), rng.randrange(10**self.by)
        return f"{a:0{self.digits}d}*{b:0{self.by}d}=", {"answer": str(a * b)}

    def content(self, prompt: str) -> str:
        """Return the numbers in order, so that a product and its mirror image are in the same split."""
        return "*".join(sorted(prompt[:-1].split("*")))

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Work the product out in a share of cases, otherwise blurt it."""
        if rng.random() < self.think:
            return self._work_out(example, rng, self.noise)
        a, b = str(example.prompt)[:-1].split("*")
        rows = (int("".join(str(int(x) * int(y) % 10) for x in a)) * 10**j for j, y in enumerate(reversed(b)))
        return f"|{sum(rows):0{self.digits + self.by}d}"

    def solve(self, example: Example) -> str:
        """Work the product out."""
        return self._work_out(example, random.Random(0), noise=0)

    def _work_out(self, example: Example, rng: random.Random, noise: float) -> str:
        a, b = str(example.prompt)[:-1].split("*")
        pads, total = [], 0
        for place, y in enumerate(reversed(b)):
            pad, product = _worked_row(a, int(y), rng, noise)
            total += product * 10**place
            pads.append(f"{pad}:{total:0{self.digits + self.by}d}")
        # The last total is the completion: it stands after the bar.
        pad, _, answer = ";".join(pads).rpartition(":")
        return f"{pad}|{answer}"


def _worked_row(a: str, y: int, rng: random.Random, noise: float) -> tuple[str, int]:
    """Return the carry and the digit per place of a * y, from the right, and the product."""
    carry, pad, product = 0, "", 0
    for place, x in enumerate(reversed(a)):
        value = rng.randrange(90) if rng.random() < noise else int(x) * y + carry
        carry, digit = divmod(value, 10)
        pad += f"{carry}{digit}"
        product += digit * 10**place
    return pad, product + carry * 10 ** len(a)


@register_task("chain")
class Chain(GeneratedTask):
    """Follow a chain of sums, differences and products from left to right, modulo 10.

    The prompt is "7+5*3-8=" (no precedence: left to right). A demonstration writes the running values, each wrong
    with a small chance, and then the last one: "268|8".
    """

    levels = tuple({"length": length} for length in (2, 4, 6, 8, 12, 16))

    length: int = Field(4, ge=1, le=64, description="operations in the chain")
    modulus: int = Field(10, ge=2, le=10, description="the modulus; numbers lie below it")
    operators: str = Field("+-*", pattern=r"^[+\-*]+$", description="the operations that occur")
    think: float = Field(1.0, ge=0, le=1, description="share of demonstrations that write the running values")
    noise: float = Field(0.15, ge=0, le=1, description="chance that a running value is random")

    alphabet: ClassVar[str] = "0123456789+-*=|"
    """Digits, the operations, '=' and '|'."""

    @property
    def max_new_tokens(self) -> int:
        """The token budget: the running values, and spare tokens for mistakes."""
        return 2 * self.length + 6

    @property
    def reward(self) -> Reward:
        """1 iff the number after the last '|' is the value of the chain."""
        return number_after_bar

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a random chain."""
        prompt = str(rng.randrange(self.modulus))
        for _ in range(self.length):
            prompt += rng.choice(self.operators) + str(rng.randrange(self.modulus))
        return f"{prompt}=", {"answer": str(self._values(prompt)[-1])}

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Write the running values, some wrong; or, in a share of cases, only the last one."""
        values = self._values(str(example.prompt)[:-1], rng, self.noise)
        pad = "".join(map(str, values)) if rng.random() < self.think else ""
        return f"{pad}|{values[-1]}"

    def solve(self, example: Example) -> str:
        """Write the running values."""
        values = self._values(str(example.prompt)[:-1])
        return f"{''.join(map(str, values))}|{values[-1]}"

    def _values(self, chain: str, rng: random.Random | None = None, noise: float = 0.0) -> list[int]:
        """Return the value after each operation; a wrong value carries over."""
        value, values = int(chain[0]), []
        for sign, digit in zip(chain[1::2], chain[2::2], strict=True):
            value = _apply(sign, value, int(digit)) % self.modulus
            if rng is not None and rng.random() < noise:
                value = rng.randrange(self.modulus)
            values.append(value)
        return values


def _apply(sign: str, a: int, b: int) -> int:
    return a + b if sign == "+" else a - b if sign == "-" else a * b
