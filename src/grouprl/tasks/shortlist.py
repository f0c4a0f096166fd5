"""The task of recommending things one after the other."""

from __future__ import annotations

import random
from typing import Any

from pydantic import Field, model_validator

from grouprl.envs.shortlist import Shortlist
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.games import POOR
from grouprl.tasks.registry import register_task
from grouprl.tasks.task import Question

THINGS, KINDS = "abcdefghijkl", "1234"


@register_task("shortlist")
class ShortlistTask(EnvironmentTask):
    """Recommend things of the kind that somebody likes, one a turn; nobody says whether one was a hit.

    The prompt is "a3b1c3d2:3>": things with their kinds, and the kind that is liked. An action is a thing. There are as
    many places as things that are liked.
    """

    levels = tuple(
        {"things": things, "places": places} for things, places in ((4, 1), (4, 2), (6, 3), (8, 3), (8, 4), (12, 5))
    )

    things: int = Field(6, ge=2, le=12, description="things that there are")
    places: int = Field(3, ge=1, le=11, description="places of the list, and things that are liked")
    noise: float = Field(0.4, ge=0, le=1, description=POOR)

    @model_validator(mode="after")
    def _some_are_not_liked(self) -> ShortlistTask:
        if self.places >= self.things:
            raise ValueError(f"places is {self.places}, but there are {self.things} things: some must not be liked")
        return self

    @property
    def max_turns(self) -> int:
        """The places."""
        return self.places

    @property
    def max_new_tokens(self) -> int:
        """A letter, the end, and one more."""
        return 3

    @property
    def alphabet(self) -> str:
        """Things, kinds and signs."""
        return f"{THINGS}{KINDS}:>!"

    def environment(self) -> Shortlist:
        """Return a fresh episode."""
        return Shortlist(self.max_turns, self.noise)

    def draw(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """Return things of which as many are liked as there are places."""
        names, liked = sorted(rng.sample(THINGS, self.things)), rng.choice(KINDS)
        hits = set(rng.sample(names, self.places))
        kinds = {name: liked if name in hits else rng.choice(KINDS.replace(liked, "")) for name in names}
        shown = "".join(f"{name}{kind}" for name, kind in kinds.items())
        return f"{shown}:{liked}>", {"kinds": kinds, "liked": liked}

    def solve(self, question: Question) -> str:
        """Return what is liked, one per line."""
        kinds, liked = question.columns["kinds"], question.columns["liked"]
        return "\n".join(name for name, kind in kinds.items() if kind == liked)
