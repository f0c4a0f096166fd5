"""A walk that is paid for every cell it is the first to reach: the standard check of rewards that are set functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.environment import ArrayObservation, Step
from grouprl.protocols import Discrete, MultiDiscrete, Spaces

if TYPE_CHECKING:
    from grouprl.records.examples import Example


class CoverageWalk:
    """Walk on a grid for a number of steps; a cell pays 1 when it is reached for the first time.

    F, the number of covered cells, is a submodular function of the walk, and each step is paid its marginal gain
    (Prajapat et al. 2023, arXiv:2307.13372). On the line of eleven cells, from the fourth, ten steps gain at most 8,
    and 7 by going straight to the far end.

    Args:
        side: cells along each dimension.
        start: the cell in which a walk begins, covered and not paid.
        steps: length of a walk.
        history: whether the covered cells are observed, besides place and time.
    """

    def __init__(
        self, side: Sequence[int] = (11,), start: Sequence[int] = (3,), steps: int = 10, history: bool = False
    ) -> None:
        inside = len(start) == len(side) > 0 and all(0 <= at < size for at, size in zip(start, side, strict=True))
        if not inside or max(side) < 2 or steps < 1:
            raise InputError(f"side {side}, start {start}, steps {steps}", "a walk begins inside and takes a step")
        self.side, self.start, self.steps, self.history = tuple(side), tuple(start), steps, history
        seen = (2,) * math.prod(self.side) if history else ()
        self.spaces = Spaces(MultiDiscrete((*self.side, steps + 1, *seen)), Discrete(2 * len(self.side)))
        self.walk: list[tuple[int, ...]] = []

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        """Begin at the start."""
        self.walk = [self.start]
        return self._shown()

    def step(self, action: object) -> Step:
        """Go up or down along a dimension. Raises InputError for what is not legal."""
        which = int(np.asarray(action))
        inside = 0 <= which < 2 * len(self.side)
        if not self.walk or len(self.walk) > self.steps or not (inside and self.legal()[which]):
            raise InputError(f"action {which} after {self.walk}", "it is not legal there")
        place = list(self.walk[-1])
        place[which // 2] += 1 if which % 2 else -1
        gain = float(tuple(place) not in self.walk)
        self.walk.append(tuple(place))
        return Step(self._shown(), gain, terminated=len(self.walk) > self.steps)  # type: ignore[arg-type]

    def legal(self) -> np.ndarray:
        """Return a mask [2D]: down and up along each dimension, unless they leave the grid."""
        pairs = zip(self.walk[-1], self.side, strict=True)
        return np.array([legal for at, size in pairs for legal in (at > 0, at < size - 1)])

    def score(self) -> dict[str, float]:
        """Return no components."""
        return {}

    def close(self) -> None:
        """End the walk."""
        self.walk = []

    def _shown(self) -> ArrayObservation:
        seen: list[int] = []
        if self.history:
            covered = np.zeros(self.side, dtype=int)
            covered[tuple(zip(*self.walk, strict=True))] = 1
            seen = covered.flatten().tolist()
        return ArrayObservation(np.array([*self.walk[-1], len(self.walk) - 1, *seen]), self.legal())
