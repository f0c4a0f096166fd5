"""Rows of one source are kept out of the statistics of their groups."""

from __future__ import annotations

from typing_extensions import override

from grouprl.algorithms.filter.filter import Filter
from grouprl.algorithms.lines import APART, is_from
from grouprl.algorithms.part import part
from grouprl.algorithms.sources import PLURAL, Source
from grouprl.core.batch import Batch


@part("filter")
class SourceApart(Filter):
    """Rows of one source do not count in group statistics; they stay in the loss."""

    source: Source = "demonstration"

    def __call__(self, batch: Batch) -> Batch:
        """Take the source's rows out of statistics."""
        return batch.replace(stat_b=batch.stats_b & ~batch.from_source(self.source))

    @override
    def code(self) -> str:
        return f"out_b = {is_from(self.source)}\n{APART}"

    @override
    def words(self) -> str:
        return f"{PLURAL[self.source]} do not count in group statistics"
