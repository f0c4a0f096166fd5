"""Steps of a search, each as a separate prompt."""

from __future__ import annotations

import random
from typing import ClassVar

from pydantic import Field

from grouprl.records.examples import Columns, Example
from grouprl.rewards import KnownExample, Reward
from grouprl.rewards.by_task.search_steps import RETRIEVERS, route_step
from grouprl.tasks.builtin.agents.search import RELATIONS, lands, people
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task

WHERE = {"lives": "text", "in": "text", "eats": "image", "plays": "table"}
"""By relation: the retriever that knows it."""


@register_task("route")
class Route(GeneratedTask):
    """Do one step of a search whose earlier steps are shown: send a sub-question to the right retriever, or answer.

    The prompts are "bako land?>", "bako land?bako lives miru>" and "bako land?bako lives miru;miru in oslo>", the
    completions "bako lives@text", "miru in@text" and "=oslo". A demonstration slips in a word, a retriever or the step.
    """

    levels = tuple({"people": count} for count in (20, 40, 80, 160, 300, 400))

    people: int = Field(80, ge=10, le=400, description="number of people")
    corpus: int = Field(0, description="seed of the made-up people")
    noise: float = Field(0.5, ge=0, le=1, description="chance that a demonstration has a slip")

    max_new_tokens: ClassVar[int] = 26
    """The token budget: a sub-question, two retrievers, the end of sequence, and a few spare tokens."""
    alphabet: ClassVar[str] = "abcdefghijklmnopqrstuvwxyz ?;>@=,"
    """Small letters and the signs of prompts and completions."""

    @property
    def reward(self) -> Reward:
        """1 for the right step, half for one of its parts."""
        return route_step

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a prompt with the first steps of its search, and the next step."""
        facts = people(self.corpus, self.people)
        person = rng.choice(sorted(facts))
        relation = rng.choice((*RELATIONS, "land"))
        first = "lives" if relation == "land" else relation
        steps = [(f"{person} {first}", facts[person][first])]
        if relation == "land":
            steps.append((f"{steps[0][1]} in", lands(self.corpus)[steps[0][1]]))
        done = rng.randint(0, len(steps))
        prompt = f"{person} {relation}?" + ";".join(f"{asked} {found}" for asked, found in steps[:done]) + ">"
        if done == len(steps):
            return prompt, {"kind": "ans", "gold": [steps[-1][1]], "retriever": ""}
        asked = steps[done][0]
        return prompt, {"kind": "ret", "gold": [asked], "retriever": WHERE[asked.split()[1]]}

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Return the step, sometimes with a mistake."""
        columns = example.columns
        gold, where = str(columns["gold"][0]), str(columns["retriever"])
        slip = rng.choice(("word", "where", "both", "step")) if rng.random() < self.noise else ""
        if slip == "step":
            return f"={gold.split()[0]}" if where else f"{str(example.prompt).partition('?')[0]}@none"
        if slip == "word":
            words = str(example.prompt)[:-1].replace("?", " ").replace(";", " ").split()
            gold = " ".join([rng.choice(words), *gold.split()[1:]])
        if where and slip in ("where", "both"):
            other = rng.choice(RETRIEVERS)
            where = other if slip == "where" else f"{where},{other}"
        return f"{gold}@{where}" if where else f"={gold}"

    def solve(self, example: Example) -> str:
        """Return the right step."""
        gold, where = example.columns["gold"][0], example.columns["retriever"]
        return f"{gold}@{where}" if where else f"={gold}"

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return correct steps, and an empty completion."""
        return tuple(each for each in super().reward_examples() if each.correct or not each.completion)
