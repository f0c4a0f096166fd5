"""Tasks on which a small pretrained chat model learns visibly within minutes on a CPU.

Each is right some of the time before training: a group in which every completion fails teaches nothing.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

from pydantic import Field

from grouprl.records.examples import Example, Split
from grouprl.rewards import KnownExample, Reward
from grouprl.rewards.math.last_number import last_number
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.task import with_system

Scores = dict[str, float]
NAMES = (
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
CITIES = ("Athens", "Berlin", "Cairo", "Dublin", "Geneva", "Lima", "London", "Madrid", "Oslo", "Paris", "Rome", "Tokyo")
SUBJECTS = (
    *("the sea", "a cat", "winter", "a bicycle", "bread", "the moon", "a forest", "a river", "coffee", "a violin"),
    *("rain", "a train", "the sun", "a garden", "an old house", "a mountain", "a dog", "a book", "summer", "a bridge"),
    *("a clock", "snow", "a horse", "an apple", "a lake", "the wind", "a market", "a ship", "a library", "the night"),
)


class ChatTask(GeneratedTask):
    """Made-up prompts, each shown as one message of the user."""

    @property
    def max_new_tokens(self) -> int:
        """As many tokens as a right completion needs, with some to spare."""
        return 20

    def example(self, split: Split, index: int) -> Example:
        """Return prompt `index` as chat messages."""
        found = super().example(split, index)
        return Example(found.id, with_system(str(found.prompt), None), found.columns, found.level)

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Return a correct completion: nothing is warmed up here."""
        return self.solve(example)

    def solve(self, example: Example) -> str:
        """Return a correct completion."""
        return str(example.columns["answer"])


def sum_reward(completion: str, *, answer: str) -> Scores:
    """0.8 if the last number of the completion is the sum, and 0.2 if it is also all that is said."""
    stated = last_number(completion)
    right = stated is not None and stated.value == int(answer)
    return {"sum": 0.8 * right, "alone": 0.2 * (completion.strip().rstrip(".") == answer), "correct": float(right)}


def gamed_reward(completion: str, *, answer: str) -> Scores:
    """The same with 0.2 for any number alone, right or wrong: a bonus that is easier to earn than the sum."""
    alone = re.fullmatch(r"-?[0-9]+\.?", completion.strip()) is not None
    return {**sum_reward(completion, answer=answer), "alone": 0.2 * alone}


class Sums(ChatTask):
    """The sum of two numbers, asked in a sentence."""

    largest: int = Field(30, ge=6, le=999, description="the largest number that is added")

    @property
    def reward(self) -> Reward:
        """The right sum, and nothing else."""
        return sum_reward

    def generate(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """Return a prompt, and the sum."""
        first, second = rng.randint(1, self.largest), rng.randint(1, self.largest)
        return f"What is {first} plus {second}? Answer with just the number.", {"answer": str(first + second)}

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return sums alone and in a sentence, right and wrong."""
        columns = {"answer": "12"}
        return (
            KnownExample("12", columns, True),
            KnownExample("7 + 5 = 12.", columns, True),
            KnownExample("13", columns, False),
            KnownExample("It is 12 or 13", columns, False),
        )


def json_reward(completion: str, *, answer: str) -> Scores:
    """A third of an object that is all that is said, a third of its keys, and a third of their values."""
    wanted = json.loads(answer)
    try:
        found = json.loads(completion)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return {"object": 0.0, "keys": 0.0, "values": 0.0, "correct": 0.0}
    keys = len(found.keys() & wanted.keys()) / len(found.keys() | wanted.keys())
    same = [type(found.get(key)) is type(value) and found[key] == value for key, value in wanted.items()]
    values = sum(same) / len(same)
    return {"object": 1 / 3, "keys": keys / 3, "values": values / 3, "correct": float(keys == values == 1)}


class Records(ChatTask):
    """A sentence about a person, to be written as a JSON object with given keys."""

    @property
    def max_new_tokens(self) -> int:
        """An object over several lines, and its end."""
        return 48

    @property
    def reward(self) -> Reward:
        """The object, its keys, and its values."""
        return json_reward

    def generate(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """Return a prompt, and the object."""
        who = {"name": rng.choice(NAMES), "age": rng.randint(18, 80), "city": rng.choice(CITIES)}
        text = (
            f"{who['name']} is {who['age']} years old and lives in {who['city']}. Write this as a JSON object with the "
            'keys "name", "age" and "city". Answer with the JSON only.'
        )
        return text, {"answer": json.dumps(who)}

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return objects that are right, lack a key, or stand in a fence."""
        columns = {"answer": '{"name": "Ida", "age": 30}'}
        return (
            KnownExample('{\n "age": 30, "name": "Ida"\n}', columns, True),
            KnownExample('{"name": "Ida"}', columns, False),
            KnownExample('{"name": "Ida", "age": "30"}', columns, False),
            KnownExample('```json\n{"name": "Ida", "age": 30}\n```', columns, False),
        )


def length_reward(completion: str, *, words: int) -> Scores:
    """1 less the relative distance from the number of words, not below 0; letters make a word."""
    count = len([word for word in completion.split() if any(map(str.isalpha, word))])
    return {"length": max(0.0, 1 - abs(count - words) / words), "correct": float(count == words)}


class Lengths(ChatTask):
    """A description in a given number of words."""

    @property
    def max_new_tokens(self) -> int:
        """Twice the longest that is asked for."""
        return 32

    @property
    def reward(self) -> Reward:
        """The nearness to the number of words."""
        return length_reward

    def generate(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """Return a prompt, and the number of words."""
        words = rng.randint(4, 9)
        return f"Describe {rng.choice(SUBJECTS)} in exactly {words} words.", {"words": words}

    def solve(self, example: Example) -> str:
        """Return so many words."""
        return " ".join(["calm"] * int(example.columns["words"]))

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return descriptions of the right and of a wrong length."""
        return (
            KnownExample("A cold quiet season.", {"words": 4}, True),
            KnownExample("Cold.", {"words": 4}, False),
            KnownExample("1 2 3 4", {"words": 4}, False),
        )
