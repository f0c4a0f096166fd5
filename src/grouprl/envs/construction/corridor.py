"""A corridor whose first cell says which way to turn at its end: the smallest task that needs a memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.environment import ArrayObservation, Step
from grouprl.protocols import Box, Discrete, Spaces

if TYPE_CHECKING:
    from grouprl.records.examples import Example


class Corridor:
    """Walk along a corridor and turn to the side that the first observation named (the T-maze of Bakker 2001).

    An observation is (-1 or 1 in the first cell, else 0; 1 at the junction, else 0). Action 0 turns left, 1 turns right
    and 2 walks on; to turn before the junction or to walk on at it ends the episode unpaid. The side named is paid 1.
    The best policy without a memory is paid 1/2, as it sees the same at the junction whatever was named.

    Args:
        length: steps from the first cell to the junction.
    """

    def __init__(self, length: int = 5) -> None:
        if length < 1:
            raise InputError(f"length = {length}", "the junction is one step or more from the first cell")
        self.length = length
        self.spaces = Spaces(Box((2,), -1, 1), Discrete(3))
        self._side, self._at, self._open = 0, 0, False

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        """Begin in the first cell; the example's seed names the side, so that a group is told the same."""
        named = int(example.columns["seed"]) if "seed" in example.columns else seed
        self._side, self._at, self._open = named % 2, 0, True
        return self._shown()

    def step(self, action: object) -> Step:
        """Turn or walk on. Raises InputError for an unknown action, before `reset` and after the end."""
        chosen, junction = int(np.asarray(action)), self._at == self.length
        if not self._open or not 0 <= chosen <= 2:
            raise InputError(
                f"action {chosen} {'now' if self._open else 'of an episode that is over'}",
                "actions are 0, 1 and 2, and the first turn ends the episode",
            )
        walks = chosen == 2 and not junction
        self._at += walks
        self._open = walks
        paid = float(junction and chosen == self._side)
        return Step(self._shown(), paid, terminated=not walks)  # type: ignore[arg-type]

    def score(self) -> dict[str, float]:
        """Return no component of its own: the turn is paid."""
        return {}

    def close(self) -> None:
        """End the episode."""
        self._open = False

    def _shown(self) -> ArrayObservation:
        named = (2 * self._side - 1) * (self._at == 0)
        return ArrayObservation(np.array([named, self._at == self.length], np.float32))
