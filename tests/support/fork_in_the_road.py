"""Two sides: one pays half for sure, behind the other are three doors of which some pay 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from grouprl.envs import ArrayObservation, Step
from grouprl.protocols import Box, Discrete, Spaces


class Fork:
    """Action 0 ends with 0.5, any other leads to the doors; the first `paying` doors pay 1."""

    spaces = Spaces(Box((1,), 0, 1), Discrete(3))

    def __init__(self, paying: int = 1) -> None:
        self.paying, self.inside = paying, False

    def reset(self, example: Any, seed: int) -> ArrayObservation:
        return self._shown()

    def step(self, action: Any) -> Step:
        door = int(np.asarray(action))
        if self.inside:
            return Step(self._shown(), float(door < self.paying), terminated=True)  # type: ignore[arg-type]
        self.inside = True
        return Step(self._shown(), 0.5 * (door == 0), terminated=door == 0)  # type: ignore[arg-type]

    def score(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass

    def _shown(self) -> ArrayObservation:
        legal = np.array([True, True, True] if self.inside else [True, True, False])
        return ArrayObservation(np.array([float(self.inside)], np.float32), legal)
