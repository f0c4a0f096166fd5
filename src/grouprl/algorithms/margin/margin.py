"""Margins of pairs: the amount subtracted from β times the difference of scores before the link makes it a loss."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from grouprl.algorithms.part import Part, part
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative, Positive


class Margin(Part):
    """Base: margins of pairs from the batch."""

    kind: ClassVar[str] = "margin"

    def __call__(self, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return the margin of each pair of rows `index_e2` ([E,2]), better first: [E]."""
        raise NotImplementedError


@part("margin")
class Constant(Margin):
    """The same margin for every pair (SimPO's γ, arXiv:2405.14734); 0 is none."""

    value: NonNegative = 0.0
    says = "the margin {value:g}"
    equation = "m = {value:g}"
    plain = "margin_e = {value!r}"

    def __call__(self, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return the value for each pair."""
        return torch.full((len(index_e2),), self.value, dtype=batch.dtype, device=index_e2.device)


@part("margin")
class RewardGap(Margin):
    """The difference of the two rewards times `scale`: clearly better completions must be clearly ahead."""

    scale: Positive = 1.0
    says = "{scale:g} times the difference of the rewards as margin"
    equation = "m = {scale:g}·(R_w - R_l)"
    plain = "margin_e = {scale!r} * (reward_b[index_2e[0]] - reward_b[index_2e[1]])"

    def __call__(self, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return scale·(R_w - R_l)."""
        first_e, second_e = batch.total_reward_b[index_e2.T]
        return self.scale * (first_e - second_e)
