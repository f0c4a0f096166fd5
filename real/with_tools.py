"""Tasks with tools on which a small pretrained chat model learns: its own chat template, calls in its own syntax.

Each prompt begins with solved examples, as messages with calls and results. A template that shows none of them gets
them as text (docs/chat_templates.md).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

from grouprl.records.examples import Example, Message, Split
from grouprl.rewards import KnownExample, Reward
from grouprl.rewards.math.last_number import last_number
from grouprl.tasks.generated import GeneratedTask
from grouprl.tools import ToolError, tool

COLOURS = ("red", "blue", "green", "white", "black", "yellow", "brown", "grey", "pink", "silver")
THINGS = ("lamp", "chair", "cup", "bag", "coat", "desk", "ball", "hat", "kite", "bowl", "shirt", "vase", "drum", "belt")


@tool(pure=True, seconds=None)
def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: the first number
        b: the second number
    """
    return a * b


@tool(pure=True, seconds=None)
def price_of(item: str) -> int:
    """Look up what an item costs.

    Args:
        item: colour and thing
    """
    return _number("price", item)


@tool(pure=True, seconds=None)
def stock_of(item: str) -> int:
    """Look up how many of an item are left.

    Args:
        item: colour and thing
    """
    return _number("stock", item)


def _number(kind: str, item: str) -> int:
    colour, _, thing = item.partition(" ")
    if colour not in COLOURS or thing not in THINGS:
        raise ToolError(f"there is no {item[:40]}")
    return 10 + int.from_bytes(hashlib.sha256(f"{kind} {item}".encode()).digest()[:2], "big") % 90


LOOK_UP = {"price_of": price_of, "stock_of": stock_of}


def solved(prompt: str, *calls: tuple[str, Mapping[str, Any], str], answer: str) -> list[Message]:
    """Return a solved prompt as messages: each call, its result, and the answer."""
    messages: list[Message] = [{"role": "user", "content": prompt}]
    for name, arguments, result in calls:
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "name": name, "content": result})
    return [*messages, {"role": "assistant", "content": answer}]


class ToolPrompts(GeneratedTask):
    """Made-up prompts, each behind the same solved examples."""

    @property
    def max_new_tokens(self) -> int:
        """A call, or an answer."""
        return 40

    def example(self, split: Split, index: int) -> Example:
        """Return prompt `index` as chat messages."""
        found = super().example(split, index)
        last: Message = {"role": "user", "content": str(found.prompt)}
        return Example(found.id, (*self.solved_before(), last), found.columns, found.level)

    def solved_before(self) -> tuple[Message, ...]:
        """Return the solved examples."""
        raise NotImplementedError

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Return a correct completion: nothing is warmed up here."""
        return self.solve(example)

    def solve(self, example: Example) -> str:
        """Return a correct completion."""
        return str(example.columns["answer"])


def number_reward(completion: str, *, answer: str) -> float:
    """1 if the last number of the answer is the product."""
    stated = last_number(completion)
    return float(stated is not None and stated.value == int(answer))


class Products(ToolPrompts):
    """Products of two two-digit numbers, with a calculator."""

    @property
    def reward(self) -> Reward:
        """The right product."""
        return number_reward

    def solved_before(self) -> tuple[Message, ...]:
        """Return one solved product."""
        call = ("multiply", {"a": 12, "b": 34}, "408")
        return tuple(solved("Use multiply: what is 12 times 34?", call, answer="408"))

    def generate(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """Return a prompt, and the product."""
        first, second = rng.randint(11, 99), rng.randint(11, 99)
        return f"Use multiply: what is {first} times {second}?", {"answer": str(first * second)}

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return a right and two wrong answers."""
        columns = {"answer": "132"}
        return (
            KnownExample("It is 132.", columns, True),
            KnownExample("123", columns, False),
            KnownExample("132 or 133", columns, False),
        )


class Lookups(ToolPrompts):
    """What an item costs, or how many are left: two tools, and the right one is to be called."""

    @property
    def reward(self) -> Reward:
        """The right number."""
        return number_reward

    def solved_before(self) -> tuple[Message, ...]:
        """Return a solved prompt for each tool."""
        priced, counted = (
            solved(
                _prompt(name, item), (name, {"item": item}, str(LOOK_UP[name](item))), answer=str(LOOK_UP[name](item))
            )
            for name, item in (("price_of", "blue drum"), ("stock_of", "red hat"))
        )
        return (*priced, *counted)

    def generate(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """Return a prompt, and the number."""
        name, item = rng.choice(tuple(LOOK_UP)), f"{rng.choice(COLOURS)} {rng.choice(THINGS)}"
        return _prompt(name, item), {"answer": str(LOOK_UP[name](item))}

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return a right answer, a wrong one, and one that names both."""
        columns = {"answer": "42"}
        return (
            KnownExample("It costs 42.", columns, True),
            KnownExample("24", columns, False),
            KnownExample("42 or 24", columns, False),
        )


def _prompt(name: str, item: str) -> str:
    return f"What does the {item} cost?" if name == "price_of" else f"How many of the {item} are left?"
