"""The task of answering questions about a corpus."""

from __future__ import annotations

import random
from functools import cache
from typing import ClassVar, Literal

from pydantic import Field

from grouprl.core.hashing import generator
from grouprl.envs.builtin.search import Search
from grouprl.records.examples import Columns, Example
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.options import POOR
from grouprl.tasks.registry import register_task

LANDS = ("oslo", "peru", "iran", "mali", "cuba", "chad")
RELATIONS = ("eats", "lives", "plays")
FOODS, TOYS = ("plum", "corn", "leek", "kale"), ("drum", "harp", "lute", "dice")


@register_task("search")
class SearchTask(EnvironmentTask):
    """Answer questions about people in a made-up corpus by searching; a share of them needs no search.

    The prompt is "bako lives?", or "bako land?" (two hops: the land of the town in the first document), or, without
    need of a search, "nim?", whose answer is "min". "s bako lives" searches, "a miru" answers.
    """

    levels = tuple(
        {"people": people, "hops": hops, "known": known}
        for people, hops, known in (
            (40, 1, 0.0),
            (80, 1, 0.0),
            (80, 1, 0.3),
            (80, 2, 0.0),
            (160, 2, 0.3),
            (300, 2, 0.5),
        )
    )

    people: int = Field(80, ge=10, le=400, description="number of people in the corpus")
    hops: int = Field(1, ge=1, le=2, description="documents that the hardest questions need")
    known: float = Field(0.0, ge=0, lt=1, description="share of the questions that need no search")
    corpus: int = Field(0, description="seed of the made-up corpus")
    spare: int = Field(1, ge=0, description="turns beyond those that are needed")
    reward_: Literal["exact", "sem", "formatted", "asearcher"] = Field(
        "exact", alias="reward", description="what is rewarded"
    )
    noise: float = Field(0.4, ge=0, le=1, description=POOR)

    max_new_tokens: ClassVar[int] = 14
    """The token budget of a turn: a search for two words, its end, and one more."""
    alphabet: ClassVar[str] = "abcdefghijklmnopqrstuvwxyz ?>!"
    """Small letters and the signs of prompts and observations."""

    @property
    def max_turns(self) -> int:
        """The largest number of turns: the searches needed, the answer, and spare turns."""
        return self.hops + 1 + self.spare

    def environment(self) -> Search:
        """Return a fresh episode."""
        return Search(documents(self.corpus, self.people), self.max_turns, self.reward_, self.noise)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a question with the searches that lead to its answer."""
        if rng.random() < self.known:
            word = "".join(rng.choice("aeioubdgklmnprst") for _ in range(3))
            return f"{word}?", {"answer": word[::-1], "path": []}
        facts = people(self.corpus, self.people)
        person = rng.choice(sorted(facts))
        if self.hops == 2 and rng.random() < 0.5:
            town = facts[person]["lives"]
            return f"{person} land?", {"answer": lands(self.corpus)[town], "path": [f"{person} lives", f"{town} in"]}
        relation = rng.choice(RELATIONS)
        return f"{person} {relation}?", {"answer": facts[person][relation], "path": [f"{person} {relation}"]}

    def solve(self, example: Example) -> str:
        """Return the searches that lead to the answer, and the answer, one per line."""
        columns = example.columns
        return "\n".join([*(f"s {query}" for query in columns["path"]), f"a {columns['answer']}"])


@cache
def lands(corpus: int) -> dict[str, str]:
    """Return made-up towns, and the land of each."""
    rng = generator("towns", corpus)
    return {_word(rng): rng.choice(LANDS) for _ in range(24)}


@cache
def people(corpus: int, count: int) -> dict[str, dict[str, str]]:
    """Return made-up people with the town, the food and the toy of each."""
    rng, towns = generator("people", corpus), sorted(lands(corpus))
    found: dict[str, dict[str, str]] = {}
    while len(found) < count:
        name = _word(rng)
        if name not in towns:
            found[name] = {"lives": rng.choice(towns), "eats": rng.choice(FOODS), "plays": rng.choice(TOYS)}
    return found


@cache
def documents(corpus: int, count: int) -> tuple[str, ...]:
    """Return the sentences of the corpus, one document each, in random order."""
    told = [
        f"{name} {relation} {what}" for name, facts in people(corpus, count).items() for relation, what in facts.items()
    ]
    told += [f"{town} in {land}" for town, land in lands(corpus).items()]
    generator("order", corpus).shuffle(told)
    return tuple(told)


def _word(rng: random.Random) -> str:
    return "".join(rng.choice(letters) for letters in ("bdfgklmnprst", "aeiou") * 2)
