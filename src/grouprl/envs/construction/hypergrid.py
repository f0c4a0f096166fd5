"""A grid whose cells are to be visited in proportion to their reward: the standard check of flow networks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.environment import ArrayObservation, Step
from grouprl.protocols import Discrete, MultiDiscrete, Spaces

if TYPE_CHECKING:
    from grouprl.records.examples import Example

FLOOR, PLATEAU, PEAK = 0.1, 0.5, 2.0
"""R_0, R_1 and R_2 of Bengio et al. 2021 (arXiv:2106.04399, section 4.1)."""


def reward(cell: tuple[int, ...], side: int) -> float:
    """Return R(x) = R_0 + R_1·[all |x_d/(H-1) - ½| in (¼, ½]] + R_2·[all in (0.3, 0.4)]."""
    away = [abs(x / (side - 1) - 0.5) for x in cell]
    return FLOOR + PLATEAU * all(0.25 < x <= 0.5 for x in away) + PEAK * all(0.3 < x < 0.4 for x in away)


class HyperGrid:
    """Walk from the corner of a grid by raising one coordinate at a time, and stop in a cell.

    A step pays log P_B, with P_B uniform over the coordinates that could have been raised; stopping pays log R(x).

    Args:
        side: H, cells along each dimension.
        dimensions: number of coordinates.
    """

    def __init__(self, side: int = 8, dimensions: int = 2) -> None:
        if side < 2 or dimensions < 1:
            raise InputError(
                f"side {side}, dimensions {dimensions}", "a side is at least 2, and there is at least one dimension"
            )
        self.side, self.dimensions = side, dimensions
        self.spaces = Spaces(MultiDiscrete((side,) * dimensions), Discrete(dimensions + 1))
        self.cell: list[int] = []
        self._over = False

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        """Begin in the corner."""
        self.cell = [0] * self.dimensions
        return self._shown()

    def step(self, action: object) -> Step:
        """Raise a coordinate, or stop (the last action). Raises InputError for what is not legal."""
        which = int(np.asarray(action))
        if self._over or not self.cell or not 0 <= which <= self.dimensions or not self.legal()[which]:
            raise InputError(f"action {which} in {self.cell}", "it is not legal there")
        self._over = which == self.dimensions
        if self._over:
            paid = math.log(reward(tuple(self.cell), self.side))
        else:
            self.cell[which] += 1
            paid = -math.log(sum(x > 0 for x in self.cell))
        return Step(self._shown(), paid, terminated=self._over)  # type: ignore[arg-type]

    def legal(self) -> np.ndarray:
        """Return [D+1] bool: the coordinates below their limit, and stopping."""
        return np.array([*(x < self.side - 1 for x in self.cell), True])

    def score(self) -> dict[str, float]:
        """Return no components."""
        return {}

    def close(self) -> None:
        """End the episode."""
        self._over = True

    def _shown(self) -> ArrayObservation:
        return ArrayObservation(np.array(self.cell), self.legal())
