"""A lock that tells, in a code, which digit would have opened it, once it is too late: a review can say which."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Example
from grouprl.tasks.environments import EnvironmentTask

MOST = 10


class Lock(Game):
    """One try at a lock that opens to one of `digits` digits, 0, 1, …, column `opens`; nothing tells which.

    A wrong one is answered with the letter of the right one: "a" means 0, "b" means 1.
    """

    def __init__(self, digits: int, noise: float) -> None:
        """Prepare an episode; `noise` is the chance that a demonstration tries any digit."""
        super().__init__(max_turns=1)
        self.digits, self.noise = digits, noise
        self.name, self.opens, self.open = "", 0, False

    def begin(self, columns: Mapping[str, Any], rng: random.Random) -> None:
        """Lock it."""
        self.name, self.opens = str(columns["name"]), int(columns["opens"])

    @property
    def state(self) -> str:
        """Which lock it is."""
        return self.name

    @property
    def legal(self) -> tuple[str, ...]:
        """The digits."""
        return tuple(map(str, range(self.digits)))

    @property
    def correct(self) -> bool:
        """Whether it is open."""
        return self.open

    def act(self, action: str) -> Outcome:
        """Try a digit."""
        if action not in self.legal:
            return Outcome("!", valid=False)
        self.open = int(action) == self.opens
        said = "" if self.open else chr(ord("a") + self.opens)
        return Outcome(said, reward=float(self.open), ended=True)

    def demonstrate(self, rng: random.Random) -> str:
        """Try the right digit, or with a certain chance any."""
        return str(rng.randrange(self.digits) if rng.random() < self.noise else self.opens)


class LockTask(EnvironmentTask):
    """Open a lock in one try. The prompt is "47?", the name of the lock, an action a digit."""

    name: ClassVar[str] = "lock"
    max_turns: ClassVar[int] = 1
    max_new_tokens: ClassVar[int] = 3
    alphabet: ClassVar[str] = "0123456789?!abcdefghij"

    digits: int = Field(10, ge=2, le=MOST, description="digits that may open it")
    noise: float = Field(1.0, ge=0, le=1, description="chance that a demonstration tries any digit")

    def environment(self) -> Lock:
        """Return a locked one."""
        return Lock(self.digits, self.noise)

    def sample(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """Return any lock."""
        name = f"{rng.randrange(100):02d}?"
        return name, {"name": name, "opens": rng.randrange(self.digits)}

    def solve(self, example: Example) -> str:
        """Return the digit that opens it."""
        return str(example.columns["opens"])
