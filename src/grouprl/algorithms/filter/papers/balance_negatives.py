"""As many completions below a group's mean as at or above it (RED-Drop)."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.filter.filter import Filter
from grouprl.algorithms.lines import APART
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("filter")
class BalanceNegatives(Filter):
    """If a group has more completions below its mean than others, drop as many as it takes to make both equal
    (RED-Drop).

    Dropped completions leave the group statistics and get advantage 0, but stay in the denominators, as in the authors'
    code (arXiv:2509.24203). The digits of their mean log-prob decide which ones are dropped, so that a batch in another
    order, or cut differently, drops the same ones.
    """

    says = "leave out completions below their group's mean, sampled at random, until they are no more than the others"
    reads = ("old_bt",)
    plain = (
        "below_b = counts_b & differs(reward_b, same_bb) & (reward_b < mean(reward_b, same_bb))\n"
        "positives_b = (same_bb & ~below_b).sum(1)\n"
        "log_b = torch.where(mask_bt, old_bt, 0).sum(1) / mask_bt.sum(1).clamp(min=1)\n"
        "lot_b = torch.where(below_b, (997 * log_b).frac().abs(), 2.0)  # a draw that follows from the row itself\n"
        "out_b = below_b & (rank(lot_b, group_b[:, None] == group_b) >= positives_b)\n"
        f"{APART}"
    )

    def __call__(self, batch: Batch) -> Batch:
        """Take surplus negatives out of the statistics."""
        reward_b, id_b, stats_b = batch.total_reward_b, batch.group_b, batch.stats_b
        weight_b = stats_b.to(batch.dtype)
        below_b = reward_b < levels.mean(reward_b, id_b, weight_b)
        below_b &= stats_b & levels.differs(reward_b, id_b, weight_b)
        positives_b = levels.total((stats_b & ~below_b).to(batch.dtype), id_b)
        lot_b = torch.where(below_b, self._lots(batch), 2.0)
        return batch.replace(stat_b=stats_b & ~(below_b & (levels.rank(lot_b, id_b) >= positives_b)))

    def _lots(self, batch: Batch) -> Tensor:
        """Return [B] numbers in [0, 1), from digits of the mean log-prob that rounding does not reach."""
        old_bt = torch.where(batch.mask_bt, batch.need("old_bt", self.name), 0)
        return (997 * old_bt.sum(1) / batch.length_b.clamp(min=1)).frac().abs()

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if groups hold fewer than 3 completions."""
        return ["balance_negatives has no effect: groups hold fewer than 3 completions"] if run.group_size < 3 else []
