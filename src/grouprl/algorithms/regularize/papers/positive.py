"""Terms for correct completions alone: their likelihood, and a KL that fades with difficulty."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.outcome import right, right_share
from grouprl.algorithms.part import part
from grouprl.algorithms.regularize.kl import FORMULA, Estimator
from grouprl.algorithms.regularize.regularize import KLLoss, Regularizer
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


@part("regularize")
class PositiveNLL(Regularizer):
    """Negative log-likelihood of the correct completions (VAPO, arXiv:2504.05118): μ·mean over their tokens of -log π.

    The mean is that of the method's aggregation, over correct completions only; if there are none, the term is 0. It
    needs all rows of the optimiser step, because they decide how many tokens share the term.
    """

    couples: ClassVar[str] = "batch"
    coef: NonNegative = 0.1
    says = "{coef:g} times the negative log-likelihood of correct completions"
    equation = "- {coef:g} · [right] · (Σ_all w / Σ_right w) · log π(y_t)"
    plain = (
        "right_bt = (correct_b[:, None] & active_bt).to(logp_bt.dtype)\n"
        "chosen = (weight_bt * right_bt).sum()\n"
        "scale = torch.where(chosen > 0, weight_bt.sum() / torch.where(chosen > 0, chosen, 1), 0)\n"
        "loss = loss - {coef!r} * scale * (weight_bt * right_bt * logp_bt).sum()"
    )
    idle_at = ("coef", 0, "positive_nll has no effect: its coefficient is 0")

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return -μ·log π(y_t)·[right]·Σw/Σ_right w, w the aggregation's weights."""
        weight_bt = batch.need("weight_bt", self.name)
        right_bt = (right(batch)[:, None] & batch.active_bt).to(logp_bt.dtype)
        chosen = (weight_bt * right_bt).sum()
        factor = torch.where(chosen > 0, weight_bt.sum() / torch.where(chosen > 0, chosen, 1), 0)
        return TokenLoss(-self.coef * factor * right_bt * logp_bt, {})


@part("regularize", name="difficulty_kl_loss")
class DifficultyKL(KLLoss):
    """A KL loss that fades on completions of positive advantage to hard prompts (View-R1, arXiv:2506.21655).

    Weight 1 - exp(-e·(1-d)) with difficulty d = share of wrong completions, 0 < d < 1, where A > 0; 1 elsewhere.
    """

    couples: ClassVar[str] = "group"
    coef: NonNegative = 1e-3
    estimator: Estimator = "k3"
    rate: Annotated[float, Field(gt=0)] = math.e

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return w(d)·β·k(d_t)."""
        plain = super().__call__(logp_bt, batch, entropy_bt)
        return TokenLoss(plain.loss_bt * self.by_difficulty(batch), plain.metrics)

    @override
    def code(self) -> str:
        if not (whole := super().code()):
            return ""
        lines, loss = whole.rsplit("\n", 1)
        return (
            f"{lines}\n"
            "easy_b = mean(correct_b.to(adv_bt.dtype), same_bb)\n"
            f"faded_b = torch.where((easy_b > 0) & (easy_b < 1), 1 - torch.exp(-{self.rate!r} * easy_b), 1)\n"
            "kl_bt = kl_bt * torch.where(adv_bt > 0, faded_b[:, None], 1)\n"
            f"{loss}"
        )

    def by_difficulty(self, batch: Batch) -> Tensor:
        """Return [B,T] factor of each token's KL."""
        easy_b = right_share(batch)
        faded_b = torch.where((easy_b > 0) & (easy_b < 1), 1 - torch.exp(-self.rate * easy_b), 1)
        return torch.where(batch.need("advantage_bt", self.name) > 0, faded_b[:, None], 1)

    @override
    def words(self) -> str:
        return f"{super().words()}; less on correct completions to hard prompts"

    @override
    def formula(self) -> str:
        weight = f"w = 1 - exp(-{self.rate:.4g}·ρ) if A > 0 and 0 < ρ < 1 else 1"
        return f"+ {self.coef:g} · w · [{FORMULA[self.estimator]}],  {weight},  ρ share of correct completions"
