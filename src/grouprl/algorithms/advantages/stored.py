"""Single completions from earlier steps that keep the advantage they had in their own group."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.advantages.normalize import Normalize
from grouprl.algorithms.filters.selection import Selection
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("filter")
class ReplayApart(Selection):
    """Replayed completions do not count in the statistics of the groups they join; they stay in the loss."""

    says = "completions from earlier steps do not count in the statistics of the new groups"

    def __call__(self, batch: Batch) -> Batch:
        """Take replayed rows out of statistics."""
        return batch.replace(stat_b=batch.stats_b & ~batch.from_source("replay"))


@part("advantage_transform")
class StoredAdvantage(Normalize):
    """Replayed completions keep the advantage they had when they were sampled, `past['advantage']` (Skywork R1V2's
    buffer).

    A single completion from the buffer has no group to be judged in.
    """

    says = "completions from earlier steps keep the advantage they had in their own group"
    equation = "A ← A_stored on replayed completions"
    reads = ("past.advantage",)

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """A_stored on replayed rows."""
        stored_bt = batch.broadcast(batch.need("past.advantage", self.name).to(adv_bt.dtype))
        return torch.where(batch.from_source("replay")[:, None], stored_bt, adv_bt)
