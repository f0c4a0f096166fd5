"""Choices in a row, each of which pays 1 or nothing whatever came before: what stored halves can be stitched from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from grouprl.envs.environment import ArrayObservation, Step
from grouprl.protocols import Box, Discrete, Spaces
from grouprl.records.examples import Example
from grouprl.records.offline import StoredEpisode
from grouprl.tasks.adapters.trajectories.files import write

COUNT = 4


class Choices:
    """At each of four places, the action 1 pays 1 and the action 0 nothing; the place is shown."""

    spaces = Spaces(Box((COUNT,), 0, 1), Discrete(2))

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        self.place = 0
        return self._shown()

    def step(self, action: int) -> Step:
        self.place += 1
        return Step(self._shown(), float(action), terminated=self.place == COUNT)  # type: ignore[arg-type]

    def score(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        return

    def _shown(self) -> ArrayObservation:
        return ArrayObservation(np.eye(COUNT, dtype=np.float32)[min(self.place, COUNT - 1)])


def store(path: Path) -> None:
    """Write trajectories that are right in one place each, or nowhere: no place is right in more than one of five."""
    seen = np.concatenate([np.eye(COUNT), np.eye(COUNT)[-1:]]).astype(np.float32)
    rows = [[int(place == right) for place in range(COUNT)] for right in range(COUNT + 1)]
    write(path, [StoredEpisode(seen, np.array(row), np.array(row, float), True) for row in rows * 4])


if __name__ == "__main__":
    import sys

    store(Path(sys.argv[1]))
