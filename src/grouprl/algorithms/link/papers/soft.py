"""A link that takes preferences as probabilities."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from grouprl.algorithms.link.link import Link
from grouprl.algorithms.part import part
from grouprl.core.numbers import Positive


@part("link")
class Soft(Link):
    """-σ(m)·log σ(β·Δs) - σ(-m)·log σ(-β·Δs): the margin m is the log-odds of the preference (DNO, arXiv:2404.03715).

    Its minimum is at β·Δs = m: a preference that is not sure is not driven without end.
    """

    beta: Positive = 0.1
    says = "cross-entropy to a probability of which the margin is the log-odds, at slope {beta:g}"
    equation = "-σ(m)·log σ({beta:g}·Δs) - σ(-m)·log σ(-{beta:g}·Δs)"

    def __call__(self, gap_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return -σ(m)·log σ(β·Δs) - σ(-m)·log σ(-β·Δs)."""
        gap_e = self.beta * gap_e
        return -margin_e.sigmoid() * logsigmoid(gap_e) - (-margin_e).sigmoid() * logsigmoid(-gap_e)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        of_z = "torch.nn.functional.logsigmoid"
        return f"""z_e, margin_e = {self.beta!r} * gap_e, torch.zeros_like(gap_e) + margin_e
loss_e = -margin_e.sigmoid() * {of_z}(z_e) - (-margin_e).sigmoid() * {of_z}(-z_e)"""
