"""Completions that stay out of the loss: those of an opponent, and those that nobody compared."""

from __future__ import annotations

from typing_extensions import override

from grouprl.algorithms.filter.filter import Filter, drop
from grouprl.algorithms.lines import APART
from grouprl.algorithms.part import part
from grouprl.algorithms.preferences import OPPONENT, SCORED, By, is_opponent, needs, preferences
from grouprl.core.batch import Batch


@part("filter")
class Compared(Filter):
    """Keep completions that were compared with another; the others leave the loss and its denominators.

    A judge that abstains has not called two completions equal.
    """

    by: By = "reward"
    says = "leave out completions that were compared with none, also from the denominators"

    def __call__(self, batch: Batch) -> Batch:
        """Drop rows without a comparison."""
        return drop(batch, ~preferences(batch, self.by, self.name)[1].any(1), from_statistics=True)

    @override
    def needs(self) -> tuple[str, ...]:
        return needs(self.by)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        if self.by == "judge":
            return ""
        return f"{SCORED}\nout_b = ~known_bb.any(1)\nactive_bt = active_bt & ~out_b[:, None]\n{APART}"


@part("filter")
class OpponentsApart(Filter):
    """Completions of an opponent leave the loss and its denominators; the policy's own are still compared with them."""

    reads = (f"keys.{OPPONENT}",)
    says = "do not learn from the opponent's completions, with which the policy's are compared"
    plain = f"active_bt = active_bt & (keys['{OPPONENT}'] != 1)[:, None]"

    def __call__(self, batch: Batch) -> Batch:
        """Drop the opponent's rows from the loss."""
        return drop(batch, is_opponent(batch, self.name), from_statistics=False)
