"""A link with a limit on both sides: pairs far from the threshold, right or wrong, teach nothing."""

from __future__ import annotations

from torch import Tensor

from grouprl.algorithms.link.link import Link
from grouprl.algorithms.part import part
from grouprl.core.numbers import Positive


@part("link")
class Saturating(Link):
    """1 - σ(β·Δs - m): the chance of the other judgement, the value function of KTO (arXiv:2402.01306, eq. 8)."""

    beta: Positive = 0.1
    says = "a sigmoid: flat where {beta:g} times the difference is large, on either side"
    equation = "1 - σ({beta:g}·Δs - m)"
    plain = "loss_e = (margin_e - {beta!r} * gap_e).sigmoid()"

    def __call__(self, gap_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return 1 - σ(β·Δs - m)."""
        return (margin_e - self.beta * gap_e).sigmoid()
