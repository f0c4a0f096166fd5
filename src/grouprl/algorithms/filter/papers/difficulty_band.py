"""Prompts of a success rate between two bounds (Online Difficulty Filtering)."""

from __future__ import annotations

from grouprl.algorithms.filter.difficulty import ROUNDING, band_rows, check_band
from grouprl.algorithms.filter.filter import Filter, drop
from grouprl.algorithms.lines import APART
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.numbers import Share


@part("filter")
class DifficultyBand(Filter):
    """Keep prompts whose share of correct completions lies in [low, high] (online difficulty filtering,
    arXiv:2504.03380).

    Groups that are all right or all wrong are never kept, so 0 and 1 is DAPO's filter. The others leave the loss and
    its denominators.
    """

    low: Share = 0.2
    high: Share = 0.8
    says = (
        "leave out prompts with fewer than {low:.0%} or more than {high:.0%} correct completions, and those "
        "whose completions are all right or all wrong"
    )

    def __post_init__(self) -> None:
        """Refuse an empty band."""
        check_band(self.low, self.high)

    def __call__(self, batch: Batch) -> Batch:
        """Drop groups outside the band."""
        return drop(batch, ~band_rows(batch, self.low, self.high), from_statistics=True)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return (
            "right_b = correct_b.to(reward_b.dtype)\n"
            "share_b = mean(right_b, same_bb)\n"
            f"inside_b = (share_b >= {self.low - ROUNDING!r}) & (share_b <= {self.high + ROUNDING!r})\n"
            "out_b = ~(inside_b & differs(right_b, same_bb))\n"
            "active_bt = active_bt & ~out_b[:, None]\n"
            f"{APART}"
        )

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, which are never mixed."""
        if run.group_size == 1:
            return ["difficulty_band leaves out every group of one completion. Use batch.group_size of 2 or more"]
        return []
