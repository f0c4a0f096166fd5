"""Aggregation: the weight of each token loss in the loss of one optimiser step.

The only place with denominators. Weights are computed from the whole optimiser step, so the loss does not depend on
how the step is cut into micro-batches. Tokens outside the loss mask weigh 0; a step without tokens has all weights 0.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from grouprl import levels
from grouprl.batch import Batch
from grouprl.errors import InputError
from grouprl.parts.part import Part, part


class Aggregate(Part):
    """Base: weights [B,T] of the token losses of one optimiser step."""

    def __call__(self, batch: Batch) -> Tensor:
        """Return weight_bt."""
        raise NotImplementedError


def _active(batch: Batch) -> Tensor:
    return batch.active_bt.to(batch.dtype)


def _rows(batch: Batch) -> Tensor:
    """Number of rows with at least one active token (scalar, at least 1)."""
    return batch.active_bt.any(1).sum().clamp(min=1)


@part("aggregate")
class TokenMean(Aggregate):
    """Every token of the step weighs the same: 1 / number of active tokens (DAPO)."""

    def __call__(self, batch: Batch) -> Tensor:
        """w_t = 1 / Σ|y|."""
        active_bt = _active(batch)
        return active_bt / active_bt.sum().clamp(min=1)

    def words(self) -> str:
        """Describe."""
        return "mean over all tokens of the optimiser step (long answers weigh more)"

    def formula(self) -> str:
        """Formula."""
        return "1/Σ|y_i| · Σ_i Σ_t"


@part("aggregate")
class SequenceMean(Aggregate):
    """Mean over tokens of each sequence, then mean over sequences (GRPO as published)."""

    def __call__(self, batch: Batch) -> Tensor:
        """w_t = 1 / (B |y|)."""
        active_bt = _active(batch)
        return active_bt / active_bt.sum(1, keepdim=True).clamp(min=1) / _rows(batch)

    def words(self) -> str:
        """Describe."""
        return "mean over each answer's tokens, then mean over answers (every answer weighs the same)"

    def formula(self) -> str:
        """Formula."""
        return "1/B · Σ_i 1/|y_i| · Σ_t"
