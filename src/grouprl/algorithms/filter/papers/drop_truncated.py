"""Completions that hit the length limit leave the loss (DAPO)."""

from __future__ import annotations

from typing_extensions import override

from grouprl.algorithms.filter.filter import Filter, drop
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("filter")
class DropTruncated(Filter):
    """Leave completions that hit the length limit out of the loss (DAPO's overlong filtering).

    They leave the denominators too: a mean over the B' completions that are left is B/B' times that over all B.
    `mask_truncated` keeps the denominators. `in_statistics`: whether their rewards still count in the group's mean and
    spread.
    """

    in_statistics: bool = True
    reads = ("truncated_b",)

    def __call__(self, batch: Batch) -> Batch:
        """Drop truncated rows."""
        return drop(batch, batch.need("truncated_b", self.name), from_statistics=not self.in_statistics)

    @override
    def words(self) -> str:
        still = "still count" if self.in_statistics else "do not count either"
        return (
            "leave completions that were cut off out of the loss and its denominators; in group statistics "
            f"they {still}"
        )
