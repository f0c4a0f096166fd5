"""The likelihood of completions that are to be imitated, beside a loss of pairs of others."""

from __future__ import annotations

from torch import Tensor

from grouprl.algorithms.filter.papers.best_apart import GOLD
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import part
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative

WEIGHTS = "weight.gold"


@part("regularize", name="gold_nll")
class GoldNLL(Regularizer):
    """λ times the negative log-likelihood of the completions that `best_apart` marks, a mean over all their tokens in
    the optimiser step (TPO, arXiv:2405.16681).
    """

    coef: NonNegative = 1.0
    says = "{coef:g} times the negative log-likelihood of completions to imitate, a mean over all their tokens"
    equation = "- {coef:g} · mean over all tokens t of gold y of log π(y_t)"
    plain = "loss = loss - {coef!r} * (gold_bt * logp_bt).sum() / gold_bt.sum().clamp(min=1)"
    idle_at = ("coef", 0, "gold_nll has no effect: its coefficient is 0")

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return -λ·log π(y_t)."""
        return TokenLoss(-self.coef * logp_bt, {})

    def compute_loss_weights(self, batch: Batch) -> Batch:
        """Return an optimiser step with the weights of the marked tokens."""
        gold_bt = batch.need(f"marks.{GOLD}", self.name).to(batch.dtype)
        return batch.replace(stats={**batch.stats, WEIGHTS: gold_bt / gold_bt.sum().clamp(min=1)})

    def weights(self, batch: Batch) -> Tensor:
        """Return [B,T] weights of the marked tokens."""
        weight_bt: Tensor = batch.need(f"stats.{WEIGHTS}", self.name)
        return weight_bt
