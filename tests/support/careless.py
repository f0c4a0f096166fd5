"""An environment that changes the arrays that it is given and has given."""

from __future__ import annotations

from typing import Any

import numpy as np

from grouprl.envs.environment import ArrayObservation, Step
from grouprl.protocols import Box, MultiDiscrete, Spaces


class Careless:
    """Three steps, each paid the sum of its action, which is then overwritten; one array shows the time."""

    def __init__(self, real: bool = False) -> None:
        self.spaces = Spaces(Box((1,)), Box((2,)) if real else MultiDiscrete((3, 3)))
        self.seen = np.zeros(1, np.float32)

    def reset(self, example: Any, seed: int) -> ArrayObservation:
        self.seen[:] = 0
        return ArrayObservation(self.seen)

    def step(self, action: np.ndarray) -> Step:
        self.seen += 1
        paid = float(action.sum())
        action *= 0
        return Step(ArrayObservation(self.seen), paid, terminated=bool(self.seen[0] == 3))  # type: ignore[arg-type]

    def score(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass
