"""Questions that the model answers by searching its own memory."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import ClassVar

from pydantic import Field

from grouprl.records.examples import Columns, Example
from grouprl.rewards import Reward
from grouprl.rewards.by_task.self_search import self_search
from grouprl.tasks.builtin.agents.search import lands, people
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task


@register_task("self_search")
class SelfSearch(GeneratedTask):
    """Answer questions about made-up people from one's own memory: the model writes both the queries and the results.

    The prompt is "bako land>", a completion "?bako lives[miru]?miru in[oslo]=oslo". Demonstrations mostly tell the
    truth; some remember wrongly, answer differently than they found, or leave the search out. A held-out prompt
    combines facts that occur in other prompts.
    """

    levels = tuple({"people": count} for count in (30, 40, 60, 90, 140, 200))

    people: int = Field(60, ge=30, le=400, description="number of people")
    corpus: int = Field(0, description="seed of the made-up people")
    noise: float = Field(0.5, ge=0, le=1, description="chance that a demonstration has a slip")

    max_new_tokens: ClassVar[int] = 42
    """The token budget: two searches, the answer, the end, and a few more."""
    alphabet: ClassVar[str] = "abcdefghijklmnopqrstuvwxyz >?[]="
    """Small letters and the signs of prompts and completions."""

    @property
    def reward(self) -> Reward:
        """0.8 for the correct answer, 0.2 for a text that is queries with information and then an answer."""
        return self_search

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a question about a person's town or land."""
        facts = people(self.corpus, self.people)
        person, hops = rng.choice(sorted(facts)), rng.randint(1, 2)
        town = facts[person]["lives"]
        path = [[f"{person} lives", town], [f"{town} in", lands(self.corpus)[town]]][:hops]
        return f"{person} {('lives', 'land')[hops - 1]}>", {"answer": path[-1][1], "path": path}

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Search the known facts, sometimes with a slip."""
        path, answer = [list(step) for step in example.columns["path"]], str(example.columns["answer"])
        slip = rng.choice(("fact", "answer", "search", "bracket")) if rng.random() < self.noise else ""
        if slip == "fact":
            path[-1][1] = answer = rng.choice(self._like(answer))
        if slip == "answer":
            answer = rng.choice(self._like(str(path[0][1])))
        if slip == "search":
            return f"={rng.choice(self._like(answer))}"
        said = _spell(path, answer)
        return said.replace("]", "", 1) if slip == "bracket" else said

    def solve(self, example: Example) -> str:
        """Search the known facts."""
        return _spell(example.columns["path"], str(example.columns["answer"]))

    def _like(self, word: str) -> list[str]:
        """Return the towns or the lands, whichever the word belongs to."""
        towns = lands(self.corpus)
        return sorted(towns) if word in towns else sorted(set(towns.values()))


def _spell(path: Iterable[Sequence[str]], answer: str) -> str:
    return "".join(f"?{query}[{found}]" for query, found in path) + f"={answer}"
