"""Tools to be chosen for a reasoner that then answers with their outputs."""

from __future__ import annotations

import random

from pydantic import Field

from grouprl.core.hashing import content_number
from grouprl.records.examples import Columns, Example
from grouprl.rewards import KnownExample, Reward
from grouprl.rewards.by_task.tool_choice import helped
from grouprl.rewards.contract import known_examples
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task

KINDS = ("chart", "map", "text", "count", "face", "shape")
"""Kinds of prompts; tool i helps with kind i."""


def reasons(kind: int, number: int, tools: str) -> bool:
    """Return whether a frozen reasoner solves a prompt with the outputs of tools, digits in any order.

    It does with the tool of the prompt's kind, unless the tool of the next kind misleads it; without either it solves
    a fixed two prompts in five.
    """
    misleading = str((kind + 1) % len(KINDS))
    return misleading not in tools and (str(kind) in tools or content_number(f"{kind}/{number}") % 5 < 2)


@known_examples(
    ("1", {"kind": 1, "number": 2, "most": 2}, True),
    ("2", {"kind": 1, "number": 2, "most": 2}, False),
    ("11", {"kind": 1, "number": 2, "most": 2}, False),
    ("", {"kind": 1, "number": 2, "most": 2}, False),
)
def tool_gain(completion: str, kind: int, number: int, most: int) -> dict[str, float]:
    """Return VisTA's reward of tools chosen for a reasoner (`helped`); an unreadable choice earns as little as a
    harmful one.

    A choice is up to `most` different digits, or "-" for none. `correct` tells whether the reasoner is right with it.
    """
    tools = "" if completion == "-" else completion
    known = set(tools) <= set(map(str, range(len(KINDS)))) and len(set(tools)) == len(tools) <= most
    if not completion or not known:
        return {"gain": helped(True, False), "correct": 0.0}
    right = reasons(kind, number, tools)
    return {"gain": helped(reasons(kind, number, ""), right), "correct": float(right)}


@register_task("choose")
class Choose(GeneratedTask):
    """Choose the tools whose outputs help a frozen reasoner with a question; the uses of the tools are not revealed.

    The prompt is "map 37>", a completion "1", "13" or "-" for none. One tool helps with a kind of prompt, another
    misleads. Demonstrations choose randomly.
    """

    levels = tuple({"kinds": kinds, "most": most} for most in (1, 2) for kinds in (2, 4, 6))

    kinds: int = Field(6, ge=2, le=6, description="kinds of questions")
    most: int = Field(2, ge=1, le=3, description="number of tools to choose from")

    @property
    def max_new_tokens(self) -> int:
        """The token budget: the tools, the end, and one more."""
        return self.most + 2

    @property
    def alphabet(self) -> str:
        """The letters of kinds, digits, and signs."""
        return "".join(sorted(set("".join(KINDS)))) + "0123456789 >-"

    @property
    def reward(self) -> Reward:
        """The reward: 1 for making the reasoner right, -1 for misleading it, 0.2 if it is right without help."""
        return tool_gain

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a prompt of some kind."""
        kind, number = rng.randrange(self.kinds), rng.randrange(1000)
        return f"{KINDS[kind]} {number}>", {"kind": kind, "number": number, "most": self.most}

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Choose randomly."""
        return "".join(rng.sample("012345", rng.randint(0, self.most))) or "-"

    def solve(self, example: Example) -> str:
        """Choose the tool of the kind."""
        return str(example.columns["kind"])

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return the tools that help, and an empty completion."""
        return tuple(each for each in super().reward_examples() if each.correct or not each.completion)
