"""The likelihood of the tokens of good completions alone (FunRL)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import part
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative

LEAST = 1e-7
"""Advantages below this count as none."""


@part("regularize")
class GoodTokensNLL(Regularizer):
    """α times the mean negative log-likelihood of the tokens with A > 0 (THOR, arXiv:2509.13761).

    The mean is that of the method's aggregation, over those tokens only; if there are none, the term is 0. It needs all
    rows of the optimiser step, because they decide how many tokens share the term.
    """

    couples: ClassVar[str] = "batch"
    coef: NonNegative = 0.01
    says = "{coef:g} times the negative log-likelihood of tokens with positive advantage"
    equation = "- {coef:g} · [A_t > 0] · (Σ_all w / Σ_{{A>0}} w) · log π(y_t)"
    idle_at = ("coef", 0, "good_tokens_nll has no effect: its coefficient is 0")

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return -α·log π(y_t)·[A_t > 0]·Σw/Σ_{A>0} w."""
        weight_bt, good_bt = batch.need("weight_bt", self.name), self._good(batch).to(logp_bt.dtype)
        chosen = (weight_bt * good_bt).sum()
        factor = torch.where(chosen > 0, weight_bt.sum() / torch.where(chosen > 0, chosen, 1), 0)
        return TokenLoss(-self.coef * factor * good_bt * logp_bt, {})

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return (
            f"good_bt = (active_bt & (adv_bt > {LEAST!r})).to(logp_bt.dtype)\n"
            "chosen = (weight_bt * good_bt).sum()\n"
            "scale = torch.where(chosen > 0, weight_bt.sum() / torch.where(chosen > 0, chosen, 1), 0)\n"
            f"loss = loss - {self.coef!r} * scale * (weight_bt * good_bt * logp_bt).sum()"
        )

    def _good(self, batch: Batch) -> Tensor:
        return batch.active_bt & (batch.need("advantage_bt", self.name) > LEAST)

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows without a token of positive advantage."""
        return super().zero_rows(batch) | ~self._good(batch).any(1)
