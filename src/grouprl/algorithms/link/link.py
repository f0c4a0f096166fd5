"""Losses of pairs from two scores: mostly from their difference, s(better) - s(worse)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from grouprl.algorithms.objective.ratio import within
from grouprl.algorithms.part import Part, part
from grouprl.core.numbers import Positive


class Link(Part):
    """Base: losses of pairs from differences of scores and margins."""

    kind: ClassVar[str] = "link"
    margins: ClassVar[bool] = True
    """Whether a margin acts; it does not where each score is judged by itself."""

    def __call__(self, gap_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return the loss of each pair [E] from s(better) - s(worse) and the margin, [E] each."""
        raise NotImplementedError

    def of_scores(self, better_e: Tensor, worse_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return the loss of each pair [E] from its two scores and the margin; here from their difference."""
        return self(better_e - worse_e, margin_e)


@part("link")
class Logistic(Link):
    """-log σ(β·Δs - m): the likelihood of the preference under Bradley and Terry (DPO, arXiv:2305.18290)."""

    beta: Positive = 0.1
    says = "the likelihood of the preference: flat once {beta:g} times the difference is large"
    equation = "-log σ({beta:g}·Δs - m)"
    plain = "loss_e = -torch.nn.functional.logsigmoid({beta!r} * gap_e - margin_e)"

    def __call__(self, gap_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return -log σ(β·Δs - m)."""
        return -torch.nn.functional.logsigmoid(self.beta * gap_e - margin_e)


@part("link")
class Hinge(Link):
    """max(0, 1 - (β·Δs - m)): nothing is left to learn beyond the hinge (SLiC, arXiv:2305.10425)."""

    beta: Positive = 0.1
    says = "a hinge: a pair counts until {beta:g} times the difference is 1"
    equation = "max(0, 1 - ({beta:g}·Δs - m))"
    plain = "loss_e = (1 - ({beta!r} * gap_e - margin_e)).clamp(min=0)"

    def __call__(self, gap_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return max(0, 1 - (β·Δs - m))."""
        return within(1 - (self.beta * gap_e - margin_e), low=0)


@part("link")
class Squared(Link):
    """((β·Δs - m - ½)/β)²: without a margin (Δs - 1/(2β))², a target that is not overshot (IPO, arXiv:2310.12036)."""

    beta: Positive = 0.1
    says = "least squares: the difference is to be 1/(2·{beta:g})"
    equation = "(({beta:g}·Δs - m - ½)/{beta:g})²"
    plain = "loss_e = (gap_e - (margin_e + 0.5) / {beta!r}).square()"

    def __call__(self, gap_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return ((β·Δs - m - ½)/β)²."""
        return (gap_e - (margin_e + 0.5) / self.beta).square()


def slope_of(link: Link) -> float:
    """Return the β of a link, or of the one that it holds; 1 if there is none."""
    return float(next((part.beta for part in link.whole() if hasattr(part, "beta")), 1.0))
