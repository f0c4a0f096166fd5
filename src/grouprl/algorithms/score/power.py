"""A power of a completion's mean token probability as its score: AlphaPO."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.objective.ratio import held
from grouprl.algorithms.part import part
from grouprl.algorithms.score.divergence import HIGHEST
from grouprl.algorithms.score.score import Length, Score, over_code, over_tokens
from grouprl.core.batch import Batch


@part("score")
class PowerProb(Score):
    """(1 - p^(-α))/α with log p = 1/|y| Σ_t log π(y_t) (AlphaPO, arXiv:2501.03884); its limit at α = 0 is log p.

    Exponents are held at 80 or below, with their slope.
    """

    alpha: float = 0.25
    length: Length = "mean"
    says = "a power of the completion's mean token probability: (1 - p^-{alpha:g})/{alpha:g}, by {length} of log-probs"
    equation = "s(y) = (1 - p^(-{alpha:g}))/{alpha:g},  log p = 1/|y| Σ_t log π(y_t)"

    def __call__(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return (1 - p^(-α))/α."""
        log_b = over_tokens(logp_bt, batch, self.length)
        return log_b if self.alpha == 0 else -torch.expm1(held(-self.alpha * log_b, None, HIGHEST)) / self.alpha

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        lines = over_code("logp_bt", self.length)
        power = f"-torch.expm1(held({-self.alpha!r} * score_b, None, {HIGHEST!r})) / {self.alpha!r}"
        return lines if self.alpha == 0 else f"{lines}\nscore_b = {power}"
