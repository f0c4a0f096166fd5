"""Selection of the best completions of a group by their rewards."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.filter.filter import Filter, drop
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch

KEEP = """active_bt = active_bt & kept_b[:, None]
counts_b, same_bb = counts_b & kept_b, same_bb & kept_b"""
"""Lines of plain torch that take out all rows but those of `kept_b`."""


@part("filter")
class BestOfGroup(Filter):
    """Keep the completions of each group with the largest reward, if that is above `above`; equal ones all count.

    The others leave the loss and its denominators (best of n, RAFT, arXiv:2304.06767; CRRAFT of CGPO).
    """

    above: float | None = None

    def __call__(self, batch: Batch) -> Batch:
        """Drop all rows but the best of each group."""
        allowed_b = batch.stats_b & batch.active_bt.any(1)
        if self.above is not None:
            allowed_b = allowed_b & (batch.total_reward_b > self.above)
        return drop(batch, ~extreme(batch.total_reward_b, batch.group_b, allowed_b), from_statistics=True)

    @override
    def words(self) -> str:
        bound = "" if self.above is None else f", if its reward is above {self.above:g}"
        return f"train on the completions of each group with the largest reward{bound}"

    @override
    def formula(self) -> str:
        return "y* = argmax_g R" + ("" if self.above is None else f" where R > {self.above:g}")

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        bound = "" if self.above is None else f" & (reward_b > {self.above!r})"
        return f"kept_b = extreme(reward_b, group_b, counts_b & active_bt.any(1){bound})\n{KEEP}"


def extreme(value_b: Tensor, group_b: Tensor, allowed_b: Tensor) -> Tensor:
    """Return [B] bool: the allowed rows of each group with its largest value."""
    same_bb = (group_b[:, None] == group_b[None]) & allowed_b[None]
    most_b = torch.where(same_bb, value_b[None], -torch.inf).amax(1)
    return allowed_b & (value_b == most_b)
