"""The task of recommending things one after the other."""

from __future__ import annotations

import random
from functools import cache
from typing import ClassVar

from pydantic import Field

from grouprl.core.hashing import generator
from grouprl.envs.builtin.shortlist import THINGS, Shortlist
from grouprl.records.examples import Columns, Example
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.options import POOR
from grouprl.tasks.registry import register_task


@register_task("shortlist")
class ShortlistTask(EnvironmentTask):
    """Recommend things that a person likes and has not seen, one per turn; hits are not revealed.

    The prompt is "7:ch>": a person, and the things already seen. An action is a thing, "a" to "l". People's tastes are
    generated once and never shown; each person likes enough things for the list.
    """

    levels = tuple(
        {"people": people, "places": places, "seen": seen}
        for people, places, seen in ((2, 1, 2), (4, 2, 2), (6, 3, 2), (8, 3, 3), (10, 4, 3), (10, 5, 4))
    )

    people: int = Field(6, ge=1, le=10, description="number of people")
    places: int = Field(3, ge=1, le=6, description="places of the list")
    seen: int = Field(2, ge=0, le=4, description="things that a person has seen, at most")
    corpus: int = Field(0, description="seed of the people's tastes")
    noise: float = Field(0.4, ge=0, le=1, description=POOR)

    max_new_tokens: ClassVar[int] = 3
    """The token budget of a turn: a letter, the end, and one more."""
    alphabet: ClassVar[str] = f"{THINGS}0123456789:>!"
    """Things, numbers and signs."""

    @property
    def max_turns(self) -> int:
        """The number of turns: the places of the list."""
        return self.places

    def environment(self) -> Shortlist:
        """Return a fresh episode."""
        return Shortlist(self.max_turns, self.noise)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a person, and the things that they have seen."""
        who = rng.randrange(self.people)
        seen = "".join(sorted(rng.sample(THINGS, rng.randint(0, self.seen))))
        return f"{who}:{seen}>", {"liked": tastes(self.corpus, self.places + self.seen)[who], "seen": seen}

    def solve(self, example: Example) -> str:
        """Return things that the person likes, one per line."""
        liked, seen = example.columns["liked"], example.columns["seen"]
        return "\n".join([thing for thing in liked if thing not in seen][: self.places])


@cache
def tastes(corpus: int, likes: int) -> tuple[str, ...]:
    """Return the things that each of ten people likes, as many as `likes`."""
    rng = generator("tastes", corpus)
    return tuple("".join(sorted(rng.sample(THINGS, likes))) for _ in range(10))
