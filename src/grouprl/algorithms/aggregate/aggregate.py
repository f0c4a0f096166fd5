"""Aggregation: the weight of each token loss in the loss of one optimiser step.

The only place with denominators. Weights are computed from the whole optimiser step, so the loss does not depend on
how the step is cut into micro-batches. Tokens outside the loss mask weigh 0 and rows without any active token do not
count as sequences; a step without tokens has all weights 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.filter.filter import UNCOUNTED
from grouprl.algorithms.part import Part, part
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


class Aggregate(Part):
    """Base: weights [B,T] of the token losses of one optimiser step."""

    def __call__(self, batch: Batch) -> Tensor:
        """Return weight_bt."""
        raise NotImplementedError


def counted(batch: Batch) -> Tensor:
    """Return [B,T] 1 for each token that counts."""
    if UNCOUNTED in batch.marks:
        return (batch.active_bt & ~batch.marks[UNCOUNTED]).to(batch.dtype)
    return batch.active_bt.to(batch.dtype)


def _rows(batch: Batch) -> Tensor:
    """Return the number of rows with at least one active token (scalar, at least 1)."""
    return batch.active_bt.any(1).sum().clamp(min=1)


ROWS = "rows = active_bt.any(1).sum().clamp(min=1)"
"""Number of rows that count, as a line of plain torch."""


@part("aggregate")
class TokenMean(Aggregate):
    """Every token of the step weighs the same: 1 / number of active tokens (DAPO)."""

    says = "mean over all tokens of the optimiser step (long completions weigh more)"
    equation = "1/Σ|y_i| · Σ_i Σ_t"
    plain = "weight_bt = active_bt.to(adv_bt.dtype) / active_bt.sum().clamp(min=1)"

    def __call__(self, batch: Batch) -> Tensor:
        """Return w_t = 1 / Σ|y|."""
        active_bt = counted(batch)
        return active_bt / active_bt.sum().clamp(min=1)


@part("aggregate")
class SequenceMean(Aggregate):
    """Mean over tokens of each sequence, then mean over sequences (GRPO as published)."""

    says = "mean over each completion's tokens, then mean over completions (every completion weighs the same)"
    equation = "1/B · Σ_i 1/|y_i| · Σ_t"
    plain = f"{ROWS}\nweight_bt = active_bt.to(adv_bt.dtype) / active_bt.sum(1, keepdim=True).clamp(min=1) / rows"

    def __call__(self, batch: Batch) -> Tensor:
        """Return w_t = 1 / (B |y|)."""
        active_bt = counted(batch)
        return active_bt / active_bt.sum(1, keepdim=True).clamp(min=1) / _rows(batch)


@part("aggregate")
class SequenceSum(Aggregate):
    """Sum over tokens of each sequence, then mean over sequences: the sequence is one action (RLOO, MiniRL)."""

    says = "sum over each completion's tokens, then mean over completions (the gradient grows with length)"
    equation = "1/B · Σ_i Σ_t"
    plain = f"{ROWS}\nweight_bt = active_bt.to(adv_bt.dtype) / rows"

    def __call__(self, batch: Batch) -> Tensor:
        """Return w_t = 1 / B."""
        return counted(batch) / _rows(batch)


@part("aggregate")
class TokenSum(Aggregate):
    """Plain sum over all tokens of the step; the learning rate carries the scale."""

    says = "sum over all tokens of the optimiser step (the gradient grows with the batch)"
    equation = "Σ_i Σ_t"
    plain = "weight_bt = active_bt.to(adv_bt.dtype)"

    def __call__(self, batch: Batch) -> Tensor:
        """Return w_t = 1."""
        return counted(batch)


@part("aggregate")
class ConstantLength(Aggregate):
    """Sum over tokens divided by a constant length, so that no completion's length sets its weight (Dr. GRPO).

    `length` None takes the batch's max_length. `sequences="sum"` does not divide by the number of sequences.
    """

    length: Annotated[int, Field(ge=1)] | None = None
    sequences: Literal["mean", "sum"] = "mean"

    def __call__(self, batch: Batch) -> Tensor:
        """Return w_t = 1 / (B Lmax)."""
        length = self.length or batch.max_length
        if length is None:
            raise InputError(
                "constant_length has no length: its own length and batch.max_length are both None",
                "every token weighs 1 / (B · length)",
                "Set constant_length's length or the batch's max_length",
            )
        rows = _rows(batch) if self.sequences == "mean" else 1
        return counted(batch) / (rows * length)

    @override
    def code(self) -> str:
        rows = "active_bt.any(1).sum().clamp(min=1)" if self.sequences == "mean" else "1"
        return f"weight_bt = active_bt.to(adv_bt.dtype) / ({rows} * {self.length or 'max_length'})"

    @override
    def needs(self) -> tuple[str, ...]:
        return () if self.length else ("max_length",)

    @override
    def words(self) -> str:
        over = "and by the number of completions" if self.sequences == "mean" else "(summed over completions)"
        return f"sum over tokens divided by a constant length ({self.length or 'the longest allowed'}) {over}"

    @override
    def formula(self) -> str:
        length = self.length or "Lmax"
        return f"1/(B·{length}) · Σ_i Σ_t" if self.sequences == "mean" else f"1/{length} · Σ_i Σ_t"
