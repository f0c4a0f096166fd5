"""Records of the rows of a rollout, as optimiser steps see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self

import torch
from torch import Tensor

from grouprl.core.batch import Batch
from grouprl.protocols import Trainable

ROW = "record.row"
"""Key of a batch: the number of each row in the prepared rollout."""


class StepRecord(Protocol):
    """Keeps what optimiser steps see of the rows of a rollout, which are numbered (`numbered`)."""

    def watch(self, outputs: Mapping[str, Tensor], batch: Batch, gap_bt: Tensor | None, /) -> None:
        """Look at a model's outputs for some rows of a step, before the loss.

        `gap_bt` is by how much the sampler's log-probs exceed the model's, 0 for tokens that were not sampled; None
        where the two are not compared.
        """
        ...

    def measure(self, policy: Trainable, step: Batch, /) -> None:
        """Look at a step whose gradient is accumulated and not yet applied."""
        ...

    def of(self, part: Batch, /) -> Self:
        """Return an empty record of some rows of a step, for a pass that another process may make."""
        ...

    def take(self, rows: Tensor, seen: Self, /) -> None:
        """Note what a pass has seen of the rows with these numbers, unless an earlier one has."""
        ...


def numbered(prepared: Batch) -> Batch:
    """Return the rollout with the numbers of its rows, by which they are recognised in optimiser steps."""
    return prepared.replace(keys={**prepared.keys, ROW: torch.arange(len(prepared.group_b))})
