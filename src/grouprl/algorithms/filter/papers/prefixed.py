"""Completions after prefixed prompts are measured, not learned."""

from __future__ import annotations

from grouprl.algorithms.augment.papers.preferences.prefixed import TWIN
from grouprl.algorithms.filter.filter import Filter, drop
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("filter")
class PrefixedApart(Filter):
    """Completions that stand after a prefixed prompt have no loss and count in no statistics; they are only scored."""

    says = "completions after prefixed prompts are scored for their quality, and are not in the loss"
    reads = (TWIN,)

    def __call__(self, batch: Batch) -> Batch:
        """Take prefixed rows out of the loss and of statistics."""
        return drop(batch, batch.need(TWIN, self.name) < 0, from_statistics=True)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        lines = ["own_b = keys['twin'] >= 0", "active_bt = active_bt & own_b[:, None]"]
        return "\n".join([*lines, "counts_b = counts_b & own_b", "same_bb = same_bb & counts_b"])
