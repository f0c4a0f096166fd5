"""The fewest tool calls with which each question was ever answered rightly."""

from __future__ import annotations

import numpy as np
import torch

from grouprl.algorithms.data_part import Desk, Exploration
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import SOURCES, Batch
from grouprl.rollout.samples import Collected


@part("explore")
class FewestCalls(Exploration):
    """Remember the fewest turns before the last of a right episode, question by question: `past.fewest_calls` (OTC).

    -1 where no episode was right in an earlier step. The rows stay as they are.
    """

    def __call__(self, collected: Collected, desk: Desk) -> Collected:
        """Change nothing."""
        return collected

    def fill(self, batch: Batch, collected: Collected, desk: Desk) -> Batch:
        """Set `past.fewest_calls`."""
        known = self._known(desk)
        fewest_b = [float(known.get(index, -1)) for index in collected.index_b.tolist()]
        return batch.replace(past={**batch.past, "fewest_calls": torch.tensor(fewest_b, dtype=batch.dtype)})

    def observe(self, collected: Collected, judged: Batch | None, desk: Desk) -> None:
        """Remember what this step's right episodes needed."""
        known = self._known(desk)
        turn_bt = collected.extras.get("turn_bt")
        calls_b = np.zeros(len(collected)) if turn_bt is None else turn_bt.max(1, initial=0)
        right_b = collected.scores.correct_b & (collected.source_b == SOURCES["drawn"])
        for index, calls in zip(collected.index_b[right_b].tolist(), calls_b[right_b].tolist(), strict=True):
            known[index] = min(int(calls), known.get(index, int(calls)))

    def _known(self, desk: Desk) -> dict[int, int]:
        return desk.store(self).setdefault("fewest", {})

    def supplies(self) -> tuple[str, ...]:
        """Batch fields."""
        return ("past.fewest_calls",)

    def words(self) -> str:
        """Describe."""
        return "remember of each question the fewest turns before the last of a right episode"

    def formula(self) -> str:
        """Formula."""
        return "n ← min(n, turns - 1) over right episodes"

    def idle(self, run: RunFacts) -> list[str]:
        """What never comes again need not be remembered."""
        if run.questions is not None:
            return []
        return ["fewest_calls remembers nothing of use: questions never end, so none comes again. Set data.questions"]
