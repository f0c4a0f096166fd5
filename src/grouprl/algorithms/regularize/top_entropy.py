"""An entropy bonus for the tokens that have a policy loss, whichever part chose them (TRL)."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import part
from grouprl.algorithms.regularize.regularize import EntropyBonus
from grouprl.algorithms.token_gate.token_gate import top_entropy, with_loss
from grouprl.core.batch import Batch
from grouprl.core.numbers import Share

WEIGHT = "weight.entropy_kept"


@part("regularize")
class TopEntropyBonus(EntropyBonus):
    """-c times the mean entropy of the optimiser step's tokens that have a loss, as in TRL.

    With `share` below 1 only those of largest current entropy count, in the sum and in the number it is divided by:
    the tokens that the gate `top_entropy` keeps. Tokens that count only in denominators never get the bonus.
    """

    share: Share = 1.0
    aggregate: None = None
    equation = "- {coef:g} · H_t · [H_t among the upper {share:g}]"

    @property
    def couples(self) -> str:  # type: ignore[override]
        """'batch', because ranking tokens by entropy needs the whole step."""
        return "batch" if self.share < 1 else "sequence"

    def compute_loss_weights(self, batch: Batch) -> Batch:
        """Return the step with the weights of a mean over the tokens that have a loss."""
        weight_bt = TokenMean()(batch.replace(loss_mask_bt=with_loss(batch)))
        return batch.replace(stats={**batch.stats, WEIGHT: weight_bt})

    def weights(self, batch: Batch) -> Tensor:
        """Return [B,T] weights: one over the number of tokens that have a loss."""
        weight_bt: Tensor = batch.need(f"stats.{WEIGHT}", self.name)
        return weight_bt

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return -c·H_t·m_t·N/Σm, m the mask of the tokens that count."""
        out = super().__call__(logp_bt, batch, entropy_bt)
        if self.share == 1:
            return out
        keep_bt = top_entropy(entropy_bt, batch, self.share, self.name)
        grown = with_loss(batch).sum().to(batch.dtype) / keep_bt.sum().clamp(min=1)
        return TokenLoss(torch.where(keep_bt, out.loss_bt * grown, 0), out.metrics)

    @override
    def words(self) -> str:
        which = "" if self.share == 1 else f" for the {self.share:.0%} of tokens with the largest current entropy"
        return f"an entropy bonus of weight {self.coef:g} per token{which}, a mean over those tokens"
