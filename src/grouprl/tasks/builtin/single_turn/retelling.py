"""Facts to be told in a sentence."""

from __future__ import annotations

import random
from typing import ClassVar

from pydantic import Field

from grouprl.records.examples import Columns, Example
from grouprl.rewards import Reward
from grouprl.rewards.by_task.bleu import bleu
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task

NAMES = ("ann", "bob", "eve", "joe", "kim", "lea", "max", "tom")
TOWNS = ("bern", "cork", "kiel", "lima", "oslo", "riga")
FRUIT = ("figs", "kiwi", "leek", "plum")


@register_task("retell")
class Retell(GeneratedTask):
    """Tell facts in a sentence close to one of two reference sentences.

    The prompt is "ann 47 oslo>", a correct completion "ann is 47 and lives in oslo" or "ann of oslo is 47 years old".
    A demonstration says each word wrongly, twice or not at all with a certain chance.
    """

    levels = tuple({"facts": facts, "noise": noise} for noise in (0.05, 0.15) for facts in (1, 2, 3))

    facts: int = Field(2, ge=1, le=3, description="facts in the text: age, town, food")
    noise: float = Field(0.12, ge=0, le=1, description="chance that a word of a demonstration is wrong")

    alphabet: ClassVar[str] = "abcdefghijklmnopqrstuvwxyz0123456789 >"
    """The letters of all words, digits and '>'."""

    @property
    def max_new_tokens(self) -> int:
        """The token budget: the longest sentence with all its words twice, and the end."""
        return 2 * max(len(text) for text in sentences("eve", "77", "bern", "figs", self.facts)) + 4

    @property
    def reward(self) -> Reward:
        """The BLEU score against both references."""
        return bleu

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return facts about a person."""
        name, age, town, food = rng.choice(NAMES), str(rng.randint(10, 99)), rng.choice(TOWNS), rng.choice(FRUIT)
        told = " ".join((name, age, town, food)[: self.facts + 1])
        return f"{told}>", {"references": list(sentences(name, age, town, food, self.facts))}

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Write one of the references, with slips."""
        said: list[str] = []
        words = str(rng.choice(example.columns["references"])).split()
        for word in words:
            if rng.random() >= self.noise:
                said.append(word)
                continue
            said += rng.choice([[], [word, word], [rng.choice(words)], [rng.choice((*NAMES, *TOWNS, *FRUIT))]])
        return " ".join(said)

    def solve(self, example: Example) -> str:
        """Write the first reference."""
        return str(example.columns["references"][0])


def sentences(name: str, age: str, town: str, food: str, facts: int) -> tuple[str, str]:
    """Return two sentences that tell the first `facts` of age, town and food."""
    return (
        (f"{name} is {age}", f"{name} is {age} years old"),
        (f"{name} is {age} and lives in {town}", f"{name} of {town} is {age} years old"),
        (f"{name} is {age} and eats {food} in {town}", f"{name} of {town} is {age} years old and likes {food}"),
    )[facts - 1]
