"""Losses of pairs whose labels are wrong now and then: smoothed labels, and a loss that is right on average."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.link.link import Link, Logistic
from grouprl.algorithms.part import part


def both_ways(link: Link, better_e: Tensor, worse_e: Tensor, margin_e: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses [E] of the pairs as they are labelled, and of the same pairs with the labels exchanged."""
    return link.of_scores(better_e, worse_e, margin_e), link.of_scores(worse_e, better_e, -margin_e)


EXCHANGED = """kept_e = loss_e
better_e, worse_e, margin_e = worse_e, better_e, -margin_e
gap_e = better_e - worse_e"""
"""Lines that exchange the labels of the pairs."""


def both_lines(link: Link, joined: str) -> str:
    """Return the code of a link for the labels as they are and for exchanged ones, and of the expression `joined` of
    both.
    """
    lines = link.code()
    return f"{lines}\n{EXCHANGED}\n{lines}\nloss_e = {joined}" if lines else ""


@part("link")
class Smoothed(Link):
    """(1-ε)·ℓ(z) + ε·ℓ(-z): labels of which a share ε counts as wrong (cDPO, Mitchell 2023)."""

    of: Link = Logistic()
    flips: Annotated[float, Field(ge=0, le=0.5)] = 0.1

    def of_scores(self, better_e: Tensor, worse_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return (1-ε)·ℓ + ε·ℓ of the exchanged pair."""
        kept_e, flipped_e = both_ways(self.of, better_e, worse_e, margin_e)
        return (1 - self.flips) * kept_e + self.flips * flipped_e

    @override
    def words(self) -> str:
        return f"labels smoothed: {1 - self.flips:g} for the pair as labelled, {self.flips:g} for the opposite"

    @override
    def formula(self) -> str:
        return f"{1 - self.flips:g}·ℓ(Δs, m) + {self.flips:g}·ℓ(-Δs, -m),  ℓ = {self.of.formula()}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return both_lines(self.of, f"{1 - self.flips!r} * kept_e + {self.flips!r} * loss_e")


@part("link")
class Unbiased(Link):
    """[(1-ε)·ℓ(z) - ε·ℓ(-z)]/(1-2ε): on average over labels flipped with chance ε it is ℓ (rDPO, arXiv:2403.00409).

    The loss has no lower bound: it falls by βε/(1-2ε) per unit of the difference however large that is.
    """

    of: Link = Logistic()
    flips: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    says = "corrected so that labels of which {flips:g} are flipped give the clean loss on average"

    def of_scores(self, better_e: Tensor, worse_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return [(1-ε)·ℓ - ε·ℓ of the exchanged pair]/(1-2ε)."""
        kept_e, flipped_e = both_ways(self.of, better_e, worse_e, margin_e)
        return ((1 - self.flips) * kept_e - self.flips * flipped_e) / (1 - 2 * self.flips)

    @override
    def formula(self) -> str:
        kept, flipped = f"{1 - self.flips:g}·ℓ(Δs, m)", f"{self.flips:g}·ℓ(-Δs, -m)"
        return f"[{kept} - {flipped}]/{1 - 2 * self.flips:g},  ℓ = {self.of.formula()}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return both_lines(self.of, f"({1 - self.flips!r} * kept_e - {self.flips!r} * loss_e) / {1 - 2 * self.flips!r}")
