"""Questions from memory, some of which cannot be answered."""

from __future__ import annotations

import random
from typing import ClassVar

from pydantic import Field

from grouprl.core.hashing import generator
from grouprl.records.examples import Columns, Example
from grouprl.rewards import Reward
from grouprl.rewards.by_task.recall import REFUSAL, knowledge
from grouprl.tasks.builtin.agents.search import RELATIONS, people
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task


@register_task("recall")
class Recall(GeneratedTask):
    """Answer questions about made-up people from memory, or refuse with "?" if the answer is unknown.

    The prompt is "bako lives>", the completion a thought, a bar and the answer: "bako lives miru|miru". Demonstrations
    tell the truth about a share of the people, the `known`, make up answers about the others, and refuse sometimes: a
    policy warmed up on them knows some people and has to find out which. The people of held-out prompts never occur in
    demonstrations.
    """

    levels = tuple({"people": count} for count in (12, 20, 40, 80, 160, 300))

    people: int = Field(20, ge=12, le=400, description="number of people")
    corpus: int = Field(0, description="seed of the made-up people")
    known: float = Field(0.5, ge=0, le=1, description="share of the people about whom demonstrations tell the truth")
    refusing: float = Field(0.15, ge=0, le=1, description="share of demonstrations that refuse")
    noise: float = Field(0.1, ge=0, le=1, description="chance that an answer about a known person is made up")

    max_new_tokens: ClassVar[int] = 22
    """The token budget: the longest fact, the bar, the answer, the end, and one more."""
    alphabet: ClassVar[str] = "abcdefghijklmnopqrstuvwxyz >|?"
    """Small letters and the signs of prompts and completions."""

    @property
    def reward(self) -> Reward:
        """The reward for format and correctness, at most 3; a refusal earns 2, a wrong answer 0 and the truth of its
        thought.
        """
        return knowledge

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a question about a person."""
        facts = people(self.corpus, self.people)
        person, relation = rng.choice(sorted(facts)), rng.choice(RELATIONS)
        answer = facts[person][relation]
        return f"{person} {relation}>", {"answer": answer, "fact": f"{person} {relation} {answer}"}

    def content(self, prompt: str) -> str:
        """Return the person, so that nothing about held-out people occurs in training."""
        return prompt.split()[0]

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Tell the truth, refuse, or make up an answer."""
        if rng.random() < self.refusing:
            return f"|{REFUSAL}"
        person, relation = str(example.prompt)[:-1].split()
        told = generator("known", self.corpus, person).random() < self.known
        if told and rng.random() >= self.noise:
            return self.solve(example)
        others = sorted({facts[relation] for facts in people(self.corpus, self.people).values()})
        made_up = rng.choice(others)
        return f"{person} {relation} {made_up}|{made_up}"

    def solve(self, example: Example) -> str:
        """Tell the truth."""
        return f"{example.columns['fact']}|{example.columns['answer']}"
