"""EXO's reverse KL between the policy's preference and the labels."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from grouprl.algorithms.link.link import Link
from grouprl.algorithms.part import part
from grouprl.core.numbers import Positive


@part("link")
class ReversePreference(Link):
    """KL(q || p) of two classes, q = σ(β·Δs - m) and p = (1-ε, ε) the smoothed label (EXO, arXiv:2402.00856, eq. 16).

    The logistic link is the KL in the other direction, with the same p at ε = 0.
    """

    beta: Positive = 0.1
    flips: Annotated[float, Field(gt=0, lt=0.5)] = 0.001
    says = "the reverse KL of the preference at {beta:g} times the difference from a label that is wrong with {flips:g}"
    equation = "q·log(q/(1-{flips:g})) + (1-q)·log((1-q)/{flips:g}),  q = σ({beta:g}·Δs - m)"

    def __call__(self, gap_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return q·log(q/(1-ε)) + (1-q)·log((1-q)/ε)."""
        z_e = self.beta * gap_e - margin_e
        kept_e = z_e.sigmoid() * (logsigmoid(z_e) - math.log1p(-self.flips))
        return kept_e + (-z_e).sigmoid() * (logsigmoid(-z_e) - math.log(self.flips))

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        of_z = "torch.nn.functional.logsigmoid"
        kept = f"z_e.sigmoid() * ({of_z}(z_e) - math.log1p(-{self.flips!r}))"
        flipped = f"(-z_e).sigmoid() * ({of_z}(-z_e) - math.log({self.flips!r}))"
        return f"z_e = {self.beta!r} * gap_e - margin_e\nloss_e = {kept} + {flipped}"
