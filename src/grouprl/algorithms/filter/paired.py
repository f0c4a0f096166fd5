"""Selection of the groups in which there is something to compare."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.filter.filter import Filter, drop
from grouprl.algorithms.losses import counted
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("filter")
class PairedGroups(Filter):
    """Keep groups with two completions of different rewards; the others leave the loss and its denominators.

    A tie, a completion that stands alone and a pair of which one completion has no token are no pair, so that a loss of
    pairs is the mean over pairs. With `ties` completions of equal rewards are a pair, too.
    """

    ties: bool = False

    def __call__(self, batch: Batch) -> Batch:
        """Drop groups that have no pair."""
        if self.ties:
            alone_b = levels.count(batch.group_b, counted(batch), batch.dtype) < 2
            return drop(batch, alone_b, from_statistics=True)
        return drop(batch, ~paired_rows(batch), from_statistics=True)

    @override
    def words(self) -> str:
        what = "two completions" if self.ties else "two completions of different rewards"
        return f"leave out groups without {what}, also from the denominators"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion: nothing would be left."""
        if run.group_size == 1:
            return ["paired_groups leaves out every group of one completion. Use batch.group_size of 2 or more"]
        return []

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        if self.ties:
            lines = ["paired_b = (same_bb & (counts_b & active_bt.any(1))).sum(1) > 1"]
        else:
            lines = ["paired_b = differs(reward_b, same_bb & (counts_b & active_bt.any(1)))"]
        lines += ["active_bt = active_bt & paired_b[:, None]", "counts_b = counts_b & paired_b"]
        return "\n".join([*lines, "same_bb = same_bb & counts_b"])


def paired_rows(batch: Batch) -> Tensor:
    """Return [B] bool: rows of groups in which the rewards of completions with tokens differ."""
    return levels.differs(batch.total_reward_b, batch.group_b, counted(batch))
