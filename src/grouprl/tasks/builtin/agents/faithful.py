"""The task of answering from a text so that the answer can stand in for it."""

from __future__ import annotations

import random
from typing import ClassVar

from pydantic import Field

from grouprl.envs.builtin.faithful import READER, WRITER, Faithful
from grouprl.records.examples import Columns, Example
from grouprl.rewards import KnownExample
from grouprl.tasks.builtin.agents.search import FOODS, RELATIONS, TOYS, lands, people
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.options import POOR
from grouprl.tasks.registry import register_task


@register_task("faithful")
class FaithfulTask(EnvironmentTask):
    """Answer from a text in a sentence and in a word; from the sentence alone a reader must reach the same word.

    The prompt is "bako lives miru,nim eats corn:nim eats>", the completion "2|nim eats corn|corn": the number of the
    fact, the sentence, the word. A text is taken as true, even if others contradict it.
    """

    levels = tuple({"facts": facts} for facts in (2, 3, 4, 5, 6, 8))

    facts: int = Field(3, ge=2, le=9, description="facts of a text")
    noise: float = Field(0.5, ge=0, le=1, description=POOR)

    agents: ClassVar[tuple[str, ...]] = (WRITER, READER)
    """The writer, whose reward is the episode's, and the reader."""
    max_turns: ClassVar[int] = 2
    """The number of turns: one for each agent."""
    alphabet: ClassVar[str] = "abcdefghijklmnopqrstuvwxyz0123456789 ,:>|"
    """Small letters, digits, and signs."""

    @property
    def max_new_tokens(self) -> int:
        """The token budget of a turn: the whole text, a number, a word, the end, and a few more."""
        return 17 * self.facts + 10

    def environment(self) -> Faithful:
        """Return a fresh episode."""
        return Faithful(self.noise)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a text of made-up facts and a prompt about one of them."""
        names = rng.sample(sorted(people(0, 60)), self.facts)
        kinds = {"lives": tuple(sorted(lands(0))), "eats": FOODS, "plays": TOYS}
        pairs = [(name, rng.choice(RELATIONS)) for name in names]
        told = [(f"{name} {relation}", rng.choice(kinds[relation])) for name, relation in pairs]
        asked, answer = rng.choice(told)
        context = ",".join(f"{what} {said}" for what, said in told)
        return f"{context}:{asked}>", {"context": context, "asked": asked, "answer": answer}

    def solve(self, example: Example) -> str:
        """Return the writer's completion and the reader's, one per line."""
        columns = example.columns
        fact = f"{columns['asked']} {columns['answer']}"
        place = str(columns["context"]).split(",").index(fact) + 1
        return f"{place}|{fact}|{columns['answer']}\n1|{fact}|{columns['answer']}"

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return correct completions, and empty ones: a wrong completion still earns for its form and its length."""
        return tuple(each for each in super().reward_examples() if each.correct or not each.completion)
