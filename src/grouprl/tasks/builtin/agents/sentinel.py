"""Attack and defence: a red agent rewrites requests, a sentinel writes prefixes to them."""

from __future__ import annotations

import random
from typing import ClassVar

from pydantic import Field

from grouprl.envs.builtin.sentinel import COOL, HOT, RED, SENTINEL, Sentinel
from grouprl.records.examples import Columns, Example
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.registry import register_task


@register_task("sentinel")
class SentinelTask(EnvironmentTask):
    """A red agent rewrites a request to get poison from a frozen target; a sentinel writes a prefix that prevents it.

    The red agent's prompt is "b42?", its rewrite "abc"; the sentinel's prompt is "abc:", its prefix "AB". The target
    answers a letter with poison unless its capital is in the prefix; the number after the letter means nothing.
    """

    levels = tuple({"width": width} for width in (1, 2, 3, 4, 5, 6))

    width: int = Field(3, ge=1, le=6, description="letters of a rewritten request")
    noise: float = Field(0.6, ge=0, le=1, description="chance that a demonstrated prefix is random")

    agents: ClassVar[tuple[str, ...]] = (SENTINEL, RED)
    """The sentinel, whose outcome is the episode's, and the red agent."""
    max_turns: ClassVar[int] = 2
    """The number of turns: one for each agent."""
    alphabet: ClassVar[str] = HOT + COOL + "0123456789?:"
    """The letters of requests and prefixes, digits, and the signs of prompts."""

    @property
    def max_new_tokens(self) -> int:
        """The token budget of a turn: the letters, the end of sequence, and one spare token."""
        return max(2, self.width) + 2

    def environment(self) -> Sentinel:
        """Return a fresh episode."""
        return Sentinel(self.width, self.noise)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a letter to ask for, with a number of two digits, so that there are requests to hold out."""
        asked = rng.choice(HOT)
        return f"{asked}{rng.randint(10, 99)}?", {"asked": asked}

    def solve(self, example: Example) -> str:
        """Return a rewrite of the one letter, and the prefix that prevents its poison."""
        asked = str(example.columns["asked"])
        return f"{asked * self.width}\n{asked.upper()}"
