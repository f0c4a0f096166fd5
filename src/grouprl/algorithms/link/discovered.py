"""DiscoPOP's loss, which a language model found."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from grouprl.algorithms.link.link import Link
from grouprl.algorithms.part import part
from grouprl.core.numbers import Positive


@part("link")
class LogisticExponential(Link):
    """(1-μ)·(-log σ(z)) + μ·e^{-z}, μ = σ(z/τ), z = β·Δs - m (DiscoPOP, arXiv:2406.08414, eq. 5).

    Pairs in the wrong order meet the logistic loss, the others the exponential.
    """

    beta: Positive = 0.1
    tau: Positive = 0.05
    says = "logistic where {beta:g} times the difference is negative, exponential above, blended within {tau:g}"
    equation = "(1-μ)·(-log σ(z)) + μ·e^(-z),  μ = σ(z/{tau:g}),  z = {beta:g}·Δs - m"

    def __call__(self, gap_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return (1-μ)·(-log σ(z)) + μ·e^{-z}; μ·e^{-z} is one exponential, so that neither factor overflows."""
        z_e = self.beta * gap_e - margin_e
        mixed_e = (logsigmoid(z_e / self.tau) - z_e).exp()
        return mixed_e - (-z_e / self.tau).sigmoid() * logsigmoid(z_e)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        of_z = "torch.nn.functional.logsigmoid"
        mixed = f"({of_z}(z_e / {self.tau!r}) - z_e).exp()"
        logistic = f"(-z_e / {self.tau!r}).sigmoid() * {of_z}(z_e)"
        return f"z_e = {self.beta!r} * gap_e - margin_e\nloss_e = {mixed} - {logistic}"
