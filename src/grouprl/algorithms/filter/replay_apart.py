"""Completions from earlier steps are kept out of the statistics of the groups they join."""

from __future__ import annotations

from grouprl.algorithms.filter.filter import Filter
from grouprl.algorithms.lines import APART, is_from
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("filter")
class ReplayApart(Filter):
    """Replayed completions do not count in the statistics of the groups they join; they stay in the loss."""

    says = "completions from earlier steps do not count in the statistics of the new groups"

    def __call__(self, batch: Batch) -> Batch:
        """Take replayed rows out of statistics."""
        return batch.replace(stat_b=batch.stats_b & ~batch.from_source("replay"))

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return f"out_b = {is_from('replay')}\n{APART}"
