"""A grid with walls, drawn level by level, in which the shortest way to the goal is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.environment import ArrayObservation, Step
from grouprl.protocols import Box, Discrete, Spaces

if TYPE_CHECKING:
    from grouprl.records.examples import Example

WAYS = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Rows and columns that the actions 0 to 3 add."""
REACH = 2
"""Cells that are seen in each direction."""
Cell = tuple[int, int]


class WalledGrid:
    """Find the goal of a grid whose walls, start and goal are drawn from the example's seed: a level for each prompt.

    Seen are the walls within two cells (the edge is wall), the way to the goal as rows and columns over the side, and
    the share of steps that are left. A step into a wall stays where it is. The goal pays 1 - 0.9·t/`steps` after t
    steps. `score` has the count `#best`, what the shortest way is paid: an antagonist that plays each level at its best
    (levels of Jackson et al. 2023, arXiv:2310.02782, are such grids).

    Args:
        side: cells along each dimension.
        walls: the chance that a cell is wall.
        steps: the most steps of an episode.
    """

    def __init__(self, side: int = 5, walls: float = 0.3, steps: int = 15) -> None:
        if side < 2 or not 0 <= walls < 1 or steps < 1:
            raise InputError(
                f"side {side}, walls {walls}, steps {steps}",
                "a side has at least 2 cells, walls are a share below 1, and a step is needed",
            )
        self.side, self.walls, self.steps = side, walls, steps
        self.spaces = Spaces(Box(((2 * REACH + 1) ** 2 + 3,), -1, 1), Discrete(len(WAYS)))
        self.wall_rc = np.zeros((side, side), dtype=bool)
        self.at: Cell = (0, 0)
        self.goal: Cell = (0, 0)
        self.best, self._taken, self._open = 0.0, 0, False

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        """Draw the level of the example."""
        level = int(example.columns["seed"]) if "seed" in example.columns else seed
        self.wall_rc, self.at, self.goal, length = drawn_level(self.side, self.walls, self.steps, level)
        self.best, self._taken, self._open = self.paid(length), 0, True
        return self._shown()

    def step(self, action: object) -> Step:
        """Go one cell, or stay before a wall. Raises InputError for an unknown action, and if no episode is under
        way.
        """
        which = int(np.asarray(action))
        if not self._open or not 0 <= which < len(WAYS):
            raise InputError(f"action {which}", "actions are 0 to 3, within an episode", "Call reset first")
        there = (self.at[0] + WAYS[which][0], self.at[1] + WAYS[which][1])
        self.at = there if is_free(self.wall_rc, there) else self.at
        self._taken += 1
        found = self.at == self.goal
        self._open = not found and self._taken < self.steps
        return Step(self._shown(), self.paid(self._taken) if found else 0.0, terminated=not self._open)  # type: ignore[arg-type]

    def paid(self, steps: int) -> float:
        """Return what the goal pays after so many steps."""
        return 1 - 0.9 * steps / self.steps

    def score(self) -> dict[str, float]:
        """Return what the shortest way is paid, which is measured and not paid."""
        return {"#best": self.best}

    def close(self) -> None:
        """End the episode."""
        self._open = False

    def _shown(self) -> ArrayObservation:
        (row, column), (down, right) = self.at, self.goal
        near = np.pad(self.wall_rc, REACH, constant_values=True)[
            row : row + 2 * REACH + 1, column : column + 2 * REACH + 1
        ]
        rest = [(down - row) / self.side, (right - column) / self.side, 1 - self._taken / self.steps]
        return ArrayObservation(np.concatenate([near.ravel(), rest]).astype(np.float32))


def is_free(wall_rc: np.ndarray, cell: Cell) -> bool:
    """Return whether a cell is inside the grid and not a wall."""
    inside = all(0 <= at < size for at, size in zip(cell, wall_rc.shape, strict=True))
    return inside and not wall_rc[cell]


def drawn_level(side: int, walls: float, steps: int, level: int) -> tuple[np.ndarray, Cell, Cell, int]:
    """Return walls, start and goal of a level, and the length of the shortest way, which is 1 to `steps`."""
    luck = np.random.default_rng(level)
    while True:
        wall_rc = luck.random((side, side)) < walls
        free = [(int(row), int(column)) for row, column in np.argwhere(~wall_rc)]
        if len(free) > 1:
            start, goal = (free[i] for i in luck.choice(len(free), 2, replace=False))
            length = shortest(wall_rc, start, goal)
            if length is not None and length <= steps:
                return wall_rc, start, goal, length


def shortest(wall_rc: np.ndarray, start: Cell, goal: Cell) -> int | None:
    """Return the number of steps of the shortest way; None if there is none."""
    seen, edge, length = {start}, [start], 0
    while edge:
        if goal in edge:
            return length
        edge = _beyond(wall_rc, edge, seen)
        seen.update(edge)
        length += 1
    return None


def _beyond(wall_rc: np.ndarray, edge: Sequence[Cell], seen: set[Cell]) -> list[Cell]:
    cells = {(row + down, column + right) for row, column in edge for down, right in WAYS}
    return [cell for cell in cells if cell not in seen and is_free(wall_rc, cell)]
