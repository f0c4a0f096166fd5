"""One choice among arms that pay and cost: the standard check of methods that hold a limit of costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.environment import COST, ArrayObservation, Step
from grouprl.protocols import Box, Discrete, Spaces

if TYPE_CHECKING:
    from grouprl.records.examples import Example


class Arms:
    """Choose one of several arms, once; its cost is measured as `#cost` and not paid.

    With the arms as they are and a limit of 0.5, the best policy takes the first in 3/8 of the episodes and the second
    in 5/8, which pays 0.75; no fixed price of the cost finds it.

    Args:
        pay: what each arm pays.
        cost: what each arm costs.
    """

    def __init__(self, pay: Sequence[float] = (1.0, 0.6, 0.0), cost: Sequence[float] = (1.0, 0.2, 0.0)) -> None:
        if len(pay) != len(cost) or len(pay) < 2:
            raise InputError(
                f"{len(pay)} payments and {len(cost)} costs",
                "there are at least two arms, each with a payment and a cost",
            )
        self.pay, self.cost = tuple(pay), tuple(cost)
        self.spaces = Spaces(Box((1,), 0, 1), Discrete(len(self.pay)))
        self._taken: int | None = None
        self._open = False

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        """Show the same number every time."""
        self._open = True
        return self._shown()

    def step(self, action: object) -> Step:
        """Take an arm. Raises InputError for an unknown arm, before `reset`, and after the one choice."""
        arm = int(np.asarray(action))
        if not self._open or not 0 <= arm < len(self.pay):
            raise InputError(
                f"arm {arm} {'now' if self._open else 'of an episode that is not under way'}",
                f"an episode is one choice among the arms 0 to {len(self.pay) - 1}",
            )
        self._taken, self._open = arm, False
        return Step(self._shown(), self.pay[self._taken], terminated=True)  # type: ignore[arg-type]

    def score(self) -> dict[str, float]:
        """Return the cost of the arm taken."""
        return {} if self._taken is None else {COST: self.cost[self._taken]}

    def close(self) -> None:
        """End the episode."""
        self._open = False

    def _shown(self) -> ArrayObservation:
        return ArrayObservation(np.ones(1, np.float32))
