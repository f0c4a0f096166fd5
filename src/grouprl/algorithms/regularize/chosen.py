"""The likelihood of chosen completions, beside a loss of pairs."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss, out_of, pairs_of
from grouprl.algorithms.part import part
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative

WEIGHTS = "weight.chosen"
"""Name of the weights of the tokens of chosen completions among a step's statistics."""


CHOSEN = """won_b = torch.isin(torch.arange(len(group_b)), index_2e[0])
won_b = won_b & ~torch.isin(torch.arange(len(group_b)), index_2e[1])
chosen_bt = (active_bt & won_b[:, None]).to(logp_bt.dtype)"""
"""Lines of plain torch that mark the tokens of chosen completions."""


@part("regularize", name="chosen_nll")
class ChosenNLL(Regularizer):
    """λ times the negative log-likelihood of the chosen completions (CPO, arXiv:2401.08417; RPO, arXiv:2404.19733).

    Chosen is what no pair of the method's objective calls the worse. `mean` is over all their tokens in the optimiser
    step, or over each one's tokens and then over completions; "sum" adds each one's tokens up.
    """

    coef: NonNegative = 1.0
    mean: Literal["token", "sequence", "sum"] = "token"
    idle_at = ("coef", 0, "chosen_nll has no effect: its coefficient is 0")

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return -λ·log π(y_t)."""
        share_bt, weight_bt = batch.need("share_bt", self.name), self.weights(batch)
        scale_bt = torch.where(share_bt > 0, weight_bt / share_bt.clamp(min=torch.finfo(share_bt.dtype).tiny), 0)
        return TokenLoss(-self.coef * logp_bt, {"nll_loss": -scale_bt * logp_bt})

    def compute_loss_weights(self, batch: Batch) -> Batch:
        """Return an optimiser step with the weights of the tokens of its chosen completions."""
        chosen_bt = (batch.active_bt & chosen(batch, self.name)[:, None]).to(batch.dtype)
        if self.mean == "sequence":
            chosen_bt = chosen_bt / chosen_bt.sum(1, keepdim=True).clamp(min=1)
        total = chosen_bt.any(1).sum() if self.mean == "sum" else chosen_bt.sum()
        weight_bt = chosen_bt / total.clamp(min=1)
        return batch.replace(stats={**batch.stats, f"{WEIGHTS}.{self.mean}": weight_bt})

    def weights(self, batch: Batch) -> Tensor:
        """Return [B,T] weights of the chosen completions' tokens."""
        weight_bt: Tensor = batch.need(f"stats.{WEIGHTS}.{self.mean}", self.name)
        return weight_bt

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: completions that are not chosen."""
        return super().zero_rows(batch) | ~chosen(batch, self.name)

    @override
    def words(self) -> str:
        each = "each one's sum over tokens" if self.mean == "sum" else "each one's tokens, then over completions"
        how = "all their tokens" if self.mean == "token" else each
        return f"{self.coef:g} times the negative log-likelihood of chosen completions, a mean over {how}"

    @override
    def formula(self) -> str:
        each = "Σ_t" if self.mean == "sum" else "mean_t"
        mean = "mean over all tokens t of chosen y" if self.mean == "token" else f"mean over chosen y of {each}"
        return f"- {self.coef:g} · {mean} log π(y_t)"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        mean = (
            "\nchosen_bt = chosen_bt / chosen_bt.sum(1, keepdim=True).clamp(min=1)" if self.mean == "sequence" else ""
        )
        count = "chosen_bt.any(1).sum()" if self.mean == "sum" else "chosen_bt.sum()"
        return f"{CHOSEN}{mean}\nloss = loss - {self.coef!r} * (chosen_bt * logp_bt).sum() / {count}.clamp(min=1)"


def chosen(batch: Batch, reader: str) -> Tensor:
    """Return [B] bool: rows that are the better one in some pair of the objective, and the worse one in none."""
    better_e, worse_e = pairs_of(batch, reader).index_e2.T
    lost_b = torch.zeros_like(batch.group_b, dtype=torch.bool)
    lost_b[worse_e] = True
    return ~out_of(better_e[:, None], batch) & ~lost_b
