"""The odds of a completion's mean token probability as its score: ORPO."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grouprl.algorithms.part import part
from grouprl.algorithms.score.score import Score, over_code, over_tokens
from grouprl.core.batch import Batch


def log1mexp(log: Tensor) -> Tensor:
    """Return log(1 - e^x) for x < 0 without cancellation, by log(-expm1 x) near 0 and log1p(-e^x) below -log 2."""
    near = log > -math.log(2)
    return torch.where(
        near,
        torch.log(-torch.expm1(torch.where(near, log, -1.0))),
        torch.log1p(-torch.where(near, -1.0, log).exp()),
    )


@part("score")
class LogOdds(Score):
    """log p/(1-p) with log p = 1/|y| Σ_t log π(y_t) (ORPO, arXiv:2403.07691, eq. 4).

    Certain completions have no odds: log p is held at least the type's rounding below 0, with its slope.
    """

    says = "the log-odds of the completion's mean token probability"
    equation = "s(y) = log p/(1-p),  log p = 1/|y| Σ_t log π(y_t)"

    def __call__(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return log p - log(1 - p)."""
        mean_b = over_tokens(logp_bt, batch, "mean")
        log_b = mean_b.clamp(max=-torch.finfo(mean_b.dtype).eps).detach() + (mean_b - mean_b.detach())
        return log_b - log1mexp(log_b)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        least = "torch.finfo(score_b.dtype).eps"
        held = f"log_b = score_b.clamp(max=-{least}).detach() + (score_b - score_b.detach())"
        return f"{over_code('logp_bt', 'mean')}\n{held}\nscore_b = log_b - log1mexp(log_b)"
