"""Completions behind other prompts are measured, not learned."""

from __future__ import annotations

from grouprl.algorithms.filter.filter import Filter, drop
from grouprl.algorithms.part import part
from grouprl.algorithms.score.papers.baselines import MISMATCHED
from grouprl.core.batch import Batch


@part("filter")
class MismatchedApart(Filter):
    """Completions that stand behind another prompt have no loss and count in no statistics; they are only scored."""

    says = "completions behind other prompts are scored for a baseline, and are not in the loss"
    reads = (MISMATCHED,)

    def __call__(self, batch: Batch) -> Batch:
        """Take mismatched rows out of the loss and of statistics."""
        return drop(batch, batch.need(MISMATCHED, self.name) > 0, from_statistics=True)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        lines = ["own_b = keys['mismatched'] == 0", "active_bt = active_bt & own_b[:, None]"]
        return "\n".join([*lines, "counts_b = counts_b & own_b", "same_bb = same_bb & counts_b"])
