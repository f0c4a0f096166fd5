"""Completions from earlier steps keep the advantage they had in their own group."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.lines import is_from
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("advantage_transform")
class StoredAdvantage(AdvantageTransform):
    """Replayed completions keep the advantage they had when they were sampled, `past['advantage']` (Skywork R1V2's
    buffer).

    A single completion from the buffer has no group to be judged in.
    """

    says = "completions from earlier steps keep the advantage they had in their own group"
    equation = "A ← A_stored on replayed completions"
    reads = ("past.advantage",)

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return A_stored on replayed rows, A on the others."""
        stored_bt = batch.broadcast(batch.need("past.advantage", self.name).to(adv_bt.dtype))
        return torch.where(batch.from_source("replay")[:, None], stored_bt, adv_bt)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        stored = 'past["advantage"][:, None] * mask_bt'
        return f"adv_bt = torch.where(({is_from('replay')})[:, None], {stored}, adv_bt)"
