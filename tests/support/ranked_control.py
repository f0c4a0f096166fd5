"""A control task that also pays an episode its place among those of its group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from grouprl.tasks.adapters.control import Control


class RankedControl(Control):
    """Gymnasium's environment, with the place of an episode's seed in its group as a component of the reward."""

    scores_groups: ClassVar[bool] = True

    async def score_group(self, names: Sequence[tuple[str, int]], /) -> Sequence[dict[str, float]]:
        order = sorted(seed for _, seed in names)
        return [{"place": float(order.index(seed))} for _, seed in names]
