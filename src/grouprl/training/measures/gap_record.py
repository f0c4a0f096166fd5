"""Gaps between sampler and trainer about each row of a rollout, for stored rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from grouprl.core.batch import Batch
from grouprl.protocols import Trainable
from grouprl.training.measures.step_record import ROW


class GapRecord:
    """The gap of each row of a rollout, [B]: the mean over its tokens of |log-prob of the sampler less the trainer's|.

    It is that of the first optimiser step, from which later ones are expected to differ; NaN for rows that this step
    does not pass through the model.
    """

    def __init__(self, rows: int) -> None:
        self.gap_b = torch.full((rows,), torch.nan, dtype=torch.float64)

    def watch(self, outputs: Mapping[str, Tensor], batch: Batch, gap_bt: Tensor | None = None) -> None:
        """Note the gaps of some rows of a step, where sampler and trainer are compared."""
        if gap_bt is not None:
            self.take_gaps(batch.keys[ROW], gap_bt.abs().sum(1) / batch.mask_bt.sum(1).clamp(min=1))

    def take_gaps(self, rows: Tensor, gap_b: Tensor) -> None:
        """Note the gaps of the rows with these numbers."""
        self.gap_b[rows] = gap_b.to(self.gap_b)

    def of(self, part: Batch) -> Self:
        """Return an empty record of some rows of a step."""
        return type(self)(len(part.group_b))

    def take(self, rows: Tensor, seen: Self) -> None:
        """Note the gaps that a pass has seen of the rows with these numbers."""
        new_b = ~seen.gap_b.isnan()
        self.take_gaps(rows[new_b], seen.gap_b[new_b])

    def measure(self, policy: Trainable, step: Batch) -> None:
        """Do nothing: gaps need no gradient."""
