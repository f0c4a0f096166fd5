"""Links that judge each of the two scores by itself: chosen completions gain and rejected ones lose likelihood."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn.functional import logsigmoid

from grouprl.algorithms.link.link import Link
from grouprl.algorithms.part import part
from grouprl.core.numbers import Positive


@part("link")
class BcoPair(Link):
    """-log σ(β·s_w) - log σ(-β·s_l): a classifier of chosen and rejected completions (BCO, arXiv:2404.04656)."""

    beta: Positive = 0.1
    margins: ClassVar[bool] = False
    says = "a classifier: chosen completions score above 0, rejected ones below, at slope {beta:g}"
    equation = "-log σ({beta:g}·s(w)) - log σ(-{beta:g}·s(l))"
    plain = (
        "loss_e = -torch.nn.functional.logsigmoid({beta!r} * better_e)"
        " - torch.nn.functional.logsigmoid(-{beta!r} * worse_e)"
    )

    def of_scores(self, better_e: Tensor, worse_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return -log σ(β·s_w) - log σ(-β·s_l)."""
        return -logsigmoid(self.beta * better_e) - logsigmoid(-self.beta * worse_e)


@part("link")
class NcaPair(Link):
    """-log σ(β·s_w) - ½ log σ(-β·s_w) - ½ log σ(-β·s_l): noise contrast with both as noise (arXiv:2402.05369)."""

    beta: Positive = 0.1
    margins: ClassVar[bool] = False
    says = "the chosen completion against noise, of which both are examples: its likelihood does not fall"
    equation = "-log σ({beta:g}·s(w)) - ½ log σ(-{beta:g}·s(w)) - ½ log σ(-{beta:g}·s(l))"

    def of_scores(self, better_e: Tensor, worse_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return -log σ(β·s_w) - ½ log σ(-β·s_w) - ½ log σ(-β·s_l)."""
        better_e, worse_e = self.beta * better_e, self.beta * worse_e
        return -logsigmoid(better_e) - 0.5 * logsigmoid(-better_e) - 0.5 * logsigmoid(-worse_e)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        of_z = "torch.nn.functional.logsigmoid"
        noise = f"0.5 * {of_z}(-{self.beta!r} * better_e) - 0.5 * {of_z}(-{self.beta!r} * worse_e)"
        return f"loss_e = -{of_z}({self.beta!r} * better_e) - {noise}"


@part("link")
class SppoHard(Link):
    """(s_w - 1/(2β))² + (s_l + 1/(2β))²: each score has a target (SPPO, arXiv:2405.00675, with wins as 1 and 0)."""

    beta: Positive = 0.001
    margins: ClassVar[bool] = False
    says = "least squares: the chosen score is to be 1/(2·{beta:g}), the rejected one -1/(2·{beta:g})"
    equation = "(s(w) - 1/(2·{beta:g}))² + (s(l) + 1/(2·{beta:g}))²"

    def of_scores(self, better_e: Tensor, worse_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return (s_w - 1/(2β))² + (s_l + 1/(2β))²."""
        target = 0.5 / self.beta
        return (better_e - target).square() + (worse_e + target).square()

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        target = 0.5 / self.beta
        return f"loss_e = (better_e - {target!r}).square() + (worse_e + {target!r}).square()"


@part("link")
class ApoZero(Link):
    """σ(-β·s_w) + σ(β·s_l): chosen completions gain, rejected ones lose (APO-zero, arXiv:2408.06266, eq. 7)."""

    beta: Positive = 0.1
    margins: ClassVar[bool] = False
    says = "anchored at the reference: chosen completions become likelier, rejected ones less likely, both to a limit"
    equation = "1 - σ({beta:g}·s(w)) + σ({beta:g}·s(l))"
    plain = "loss_e = (-{beta!r} * better_e).sigmoid() + ({beta!r} * worse_e).sigmoid()"

    def of_scores(self, better_e: Tensor, worse_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return σ(-β·s_w) + σ(β·s_l)."""
        return (-self.beta * better_e).sigmoid() + (self.beta * worse_e).sigmoid()


@part("link")
class ApoDown(Link):
    """σ(β·s_w) + σ(-β·Δs): both lose, the rejected one more (APO-down, arXiv:2408.06266, eq. 8)."""

    beta: Positive = 0.1
    margins: ClassVar[bool] = False
    says = "anchored at the reference: chosen completions become less likely, rejected ones less likely still"
    equation = "σ({beta:g}·s(w)) + 1 - σ({beta:g}·Δs)"
    plain = "loss_e = ({beta!r} * better_e).sigmoid() + (-{beta!r} * gap_e).sigmoid()"

    def of_scores(self, better_e: Tensor, worse_e: Tensor, margin_e: Tensor) -> Tensor:
        """Return σ(β·s_w) + σ(-β·Δs)."""
        return (self.beta * better_e).sigmoid() + (-self.beta * (better_e - worse_e)).sigmoid()
