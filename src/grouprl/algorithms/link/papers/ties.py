"""Links with ties: a pair is won, lost or tied, and a parameter says how likely ties are.

The parameter is the margin: at 0 there are no ties, and the loss of a decided pair is DPO's. A constant margin fixes
it; the margin `learned_ties` is learned.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from grouprl.algorithms.link.link import Link
from grouprl.algorithms.part import part
from grouprl.core.numbers import Positive


class TieLink(Link):
    """Base: losses of decided and of tied pairs, from differences of scores and the parameter of ties."""

    beta: float

    def of_ties(self, gap_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return the loss of each tied pair, [E]; the same for both orders of the pair."""
        raise NotImplementedError

    def ties_code(self) -> str:
        """Return the lines of plain torch that follow those of `code` and assign `tie_e`, the losses of tied pairs; ''
        if there are none.
        """
        return ""


@part("link")
class RaoKupper(TieLink):
    """-log σ(β·Δs - m) of a decided pair, -log[(e^{2m} - 1)·σ(β·Δs - m)·σ(-β·Δs - m)] of a tie (arXiv:2409.17431).

    The model of Rao and Kupper (1967): differences below m are not told apart. m must be above 0 where there are ties.
    """

    beta: Positive = 0.1
    says = "the likelihood of win or tie under Rao and Kupper, at slope {beta:g}: small differences are not told apart"
    equation = "-log σ({beta:g}·Δs - m), of a tie -log[(e^(2m) - 1)·σ({beta:g}·Δs - m)·σ(-{beta:g}·Δs - m)]"
    plain = "loss_e = -torch.nn.functional.logsigmoid({beta!r} * gap_e - margin_e)"

    def __call__(self, gap_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return -log σ(β·Δs - m)."""
        return -logsigmoid(self.beta * gap_e - margin_e)

    def of_ties(self, gap_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return -log(e^{2m} - 1) - log σ(β·Δs - m) - log σ(-β·Δs - m)."""
        gap_e = self.beta * gap_e
        scale_e = 2 * margin_e + torch.log(-torch.expm1(-2 * margin_e))
        return -scale_e - logsigmoid(gap_e - margin_e) - logsigmoid(-gap_e - margin_e)

    def ties_code(self) -> str:
        """Return the lines of plain torch that assign `tie_e`."""
        of_z = "torch.nn.functional.logsigmoid"
        return f"""margin_e = torch.zeros_like(gap_e) + margin_e
scale_e = 2 * margin_e + torch.log(-torch.expm1(-2 * margin_e))
tie_e = -scale_e - {of_z}({self.beta!r} * gap_e - margin_e) - {of_z}(-{self.beta!r} * gap_e - margin_e)"""


@part("link")
class Davidson(TieLink):
    """log(1 + e^{-z} + 2m·e^{-z/2}) of a decided pair, z = β·Δs, and log(e^{z/2} + e^{-z/2} + 2m) - log 2m of a tie.

    The model of Davidson (1970), as in arXiv:2409.17431: a tie between equals is 2m times as likely as each win, and
    the less likely the more they differ. m must be above 0 where there are ties.
    """

    beta: Positive = 0.1
    says = "the likelihood of win or tie under Davidson's model, at slope {beta:g}"
    equation = "log(1 + e^-z + 2m·e^(-z/2)), of a tie log(e^(z/2) + e^(-z/2) + 2m) - log 2m,  z = {beta:g}·Δs"
    plain = """half_e, margin_e = {beta!r} * gap_e / 2, torch.zeros_like(gap_e) + margin_e
loss_e = _total(half_e, margin_e) - half_e"""

    def __call__(self, gap_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return log(e^{z/2} + e^{-z/2} + 2m) - z/2."""
        half_e = self.beta * gap_e / 2
        return _total(half_e, margin_e) - half_e

    def of_ties(self, gap_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return log(e^{z/2} + e^{-z/2} + 2m) - log 2m."""
        return _total(self.beta * gap_e / 2, margin_e) - (2 * margin_e).log()

    def ties_code(self) -> str:
        """Return the lines of plain torch that assign `tie_e`."""
        return "tie_e = _total(half_e, margin_e) - (2 * margin_e).log()"


def _total(half_e: Tensor, margin_e: Tensor) -> Tensor:
    """Return log(e^h + e^-h + 2m), [E]."""
    tie_e = (2 * margin_e).clamp(min=torch.finfo(margin_e.dtype).tiny).log()  # a margin of 0 knows no ties
    return torch.logsumexp(torch.stack([half_e, -half_e, tie_e]), 0)
