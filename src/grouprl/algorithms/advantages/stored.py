"""Single answers from earlier steps that keep the advantage they had in their own group."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.advantages.normalize import Normalize
from grouprl.algorithms.filters.selection import Selection
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("select")
class ReplayApart(Selection):
    """Replayed answers do not count in the statistics of the groups they join; they stay in the loss."""

    def __call__(self, batch: Batch) -> Batch:
        """Take replayed rows out of statistics."""
        return batch.replace(stat_b=batch.stats_b & ~batch.from_source("replay"))

    def words(self) -> str:
        """Describe."""
        return "answers from earlier steps do not count in the statistics of the new groups"


@part("normalize")
class StoredAdvantage(Normalize):
    """Replayed answers keep the advantage they had when they were drawn, `past['advantage']` (Skywork R1V2's buffer).

    A single answer from the buffer has no group to be judged in.
    """

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """A_stored on replayed rows."""
        stored_bt = batch.broadcast(batch.need("past.advantage", self.name).to(adv_bt.dtype))
        return torch.where(batch.from_source("replay")[:, None], stored_bt, adv_bt)

    def needs(self) -> tuple[str, ...]:
        """Batch fields."""
        return ("past.advantage",)

    def words(self) -> str:
        """Describe."""
        return "answers from earlier steps keep the advantage they had in their own group"

    def formula(self) -> str:
        """Formula."""
        return "A ← A_stored on replayed answers"
