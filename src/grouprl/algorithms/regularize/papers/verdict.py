"""Likelihood of rows that are not completions of the prompt, such as verdicts on completions."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.lines import is_from
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import part
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.algorithms.sources import PLURAL, Source
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


@part("regularize")
class SourceLikelihood(Regularizer):
    """Raise the likelihood of the rows of one source: -λ·log π(y_t) there, 0 elsewhere (RL^V, arXiv:2505.04842)."""

    coef: NonNegative = 1.0
    source: Source = "verification"
    idle_at = ("coef", 0, "source_likelihood has no effect: its coefficient is 0")

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return -λ·log π on the source's rows."""
        theirs_bt = batch.from_source(self.source)[:, None] & batch.active_bt
        return TokenLoss(torch.where(theirs_bt, -self.coef * logp_bt, 0), {})

    @override
    def code(self) -> str:
        return f"loss = loss - {self.coef!r} * (weight_bt * ({is_from(self.source)})[:, None] * logp_bt).sum()"

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows of other sources."""
        return super().zero_rows(batch) | ~batch.from_source(self.source)

    @override
    def words(self) -> str:
        return f"{self.coef:g} times the negative log-likelihood of {PLURAL[self.source]}"

    @override
    def formula(self) -> str:
        return f"- {self.coef:g}·log π(y_t) on {PLURAL[self.source]}"
