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
from grouprl.rewards.last_number import last_number
from grouprl.tasks.generated import GeneratedTask
from grouprl.tools import ToolError, tool

FIRST = (
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Felix",
    "Grace",
    "Henry",
    "Ida",
    "Jack",
    "Kate",
    "Leo",
    "Mia",
    "Noah",
)
LAST = (
    "Berg",
    "Cole",
    "Diaz",
    "Evans",
    "Ford",
    "Gray",
    "Hall",
    "Kim",
    "Lopez",
    "Moore",
    "Novak",
    "Park",
    "Reed",
    "Stone",
)
CITIES = ("Athens", "Berlin", "Cairo", "Dublin", "Geneva", "Lima", "London", "Madrid", "Oslo", "Paris", "Rome", "Tokyo")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
SKIES = ("sunny", "cloudy", "rainy", "snowy", "windy", "foggy")


@tool(pure=True, seconds=None)
def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: the first number
        b: the second number
    """
    return a * b


@tool(pure=True, seconds=None)
def city_of(person: str) -> str:
    """Look up where a person lives.

    Args:
        person: first and last name
    """
    first, _, last = person.partition(" ")
    if first not in FIRST or last not in LAST:
        raise ToolError(f"nobody is called {person[:40]}")
    return _one_of(CITIES, person)


@tool(pure=True, seconds=None)
def weather(city: str, day: str) -> str:
    """Look up the weather of a city on a day.

    Args:
        city: the city
        day: the day of the week
    """
    if city not in CITIES or day not in DAYS:
        raise ToolError("that city and day are not known")
    return _one_of(SKIES, f"{city} {day}")


def _one_of(words: tuple[str, ...], key: str) -> str:
    return words[hashlib.sha256(key.encode()).digest()[0] % len(words)]


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


def word_reward(completion: str, *, answer: str) -> float:
    """1 if the answer names the weather, and no other."""
    named = [sky for sky in SKIES if sky in completion.lower()]
    return float(named == [answer])


class Lookups(ToolPrompts):
    """The weather where a person lives: two tools, the second asked with the result of the first."""

    @property
    def reward(self) -> Reward:
        """The right weather."""
        return word_reward

    def solved_before(self) -> tuple[Message, ...]:
        """Return two solved look-ups, of a person and a day each."""
        return tuple(
            message for pair in (("Ida Cole", "Friday"), ("Ben Reed", "Monday")) for message in _look_up(*pair)
        )

    def generate(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """Return a prompt, and the weather."""
        person, day = f"{rng.choice(FIRST)} {rng.choice(LAST)}", rng.choice(DAYS)
        return _asked(person, day), {"answer": weather(city_of(person), day)}

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return a right answer, a wrong one, and one that names both."""
        columns = {"answer": "rainy"}
        return (
            KnownExample("It is rainy.", columns, True),
            KnownExample("sunny", columns, False),
            KnownExample("rainy or sunny", columns, False),
        )


def _asked(person: str, day: str) -> str:
    return f"What is the weather on {day} where {person} lives?"


def _look_up(person: str, day: str) -> list[Message]:
    city = city_of(person)
    sky = weather(city, day)
    calls = ("city_of", {"person": person}, city), ("weather", {"city": city, "day": day}, sky)
    return solved(_asked(person, day), *calls, answer=sky)
