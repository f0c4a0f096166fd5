"""Completions shown after other prompts are measured, not learned."""

from __future__ import annotations

import warnings

from grouprl.algorithms.filter.filter import Filter, drop
from grouprl.algorithms.part import part
from grouprl.algorithms.score.papers.baselines import MISMATCHED, mismatched
from grouprl.core.batch import Batch

ABSENT = (
    "no completion stands after another prompt, so that the baseline z0 is 0. To estimate it, add such rows and pass "
    "keys={'mismatched': …}, [B] int64: 1 for them, 0 for the completions that are judged"
)


@part("filter")
class MismatchedApart(Filter):
    """Completions that stand after another prompt have no loss and count in no statistics; they are only scored."""

    says = "completions after other prompts are scored for a baseline, and are not in the loss"
    reads = (MISMATCHED,)

    def __call__(self, batch: Batch) -> Batch:
        """Take mismatched rows out of the loss and of statistics; warn where nothing says which these are."""
        if MISMATCHED.partition(".")[2] not in batch.keys:
            warnings.warn(ABSENT, stacklevel=2)
        return drop(batch, mismatched(batch), from_statistics=True)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        lines = ["own_b = keys['mismatched'] == 0", "active_bt = active_bt & own_b[:, None]"]
        return "\n".join([*lines, "counts_b = counts_b & own_b", "same_bb = same_bb & counts_b"])
