"""An environment of arrays that shows how many actions were taken, for tests of what is carried from step to step."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np

from grouprl.envs import Step
from grouprl.protocols import Box, Discrete, Spaces


class Counting:
    """Ends after `length` actions and fails at action number `fails`; with `luck` no two episodes look alike.

    With `stuck` it cannot be closed once it has acted; at action number `hangs` it does not return. Prompts from number
    `begins` on cannot be begun; `cost` is stated and not paid.
    """

    spaces = Spaces(observation=Box((1,)), action=Discrete(2))
    made: ClassVar[int] = 0

    def __init__(
        self,
        length: int = 5,
        fails: int = -1,
        luck: bool = False,
        stuck: bool = False,
        hangs: int = -1,
        begins: int | None = None,
        cost: float | None = None,
    ) -> None:
        Counting.made += 1
        self.begins, self.cost = begins, cost
        self.stuck, self.hangs = stuck, hangs
        self.length, self.fails, self.shift = length, fails, Counting.made if luck else 0
        self.time = 0

    def reset(self, example: Any, seed: int) -> np.ndarray:
        if self.begins is not None and int(example.id.rpartition("/")[2]) >= self.begins:
            raise ValueError("cannot begin")
        return np.array([0.0], np.float32)

    def step(self, action: int) -> Step:
        self.time += 1
        if self.time == self.fails:
            raise ValueError("broken")
        if self.time == self.hangs:
            time.sleep(600)
        shown: Any = np.array([self.time + self.shift], np.float32)
        return Step(shown, float(self.time), self.time >= self.length)

    def score(self) -> dict[str, float]:
        counts = {} if self.cost is None else {"#cost": self.cost}
        return {"correct": 1.0, "bonus": 10.0, **counts}

    def close(self) -> None:
        if self.time == self.hangs:
            time.sleep(600)
        if self.stuck and self.time:
            raise OSError("cannot be closed")
