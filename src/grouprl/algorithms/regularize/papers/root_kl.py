"""A penalty on how far a policy moves in one update, by the KL and by its square root (decentralised PO)."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.ratio import held, log_ratio
from grouprl.algorithms.part import part
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.batch import Batch

LEAST = 1e-12
"""Added under the root, so that its slope is 0 where nothing has moved, and finite everywhere."""


@part("regularize")
class RootKL(Regularizer):
    """β₁·√k + β₂·k with k = ρ - 1 - log ρ, which estimates KL(π_old || π) (arXiv:2211.03032).

    The slope of the root does not vanish near π_old: it holds small moves back as an absolute value would, and only at
    π_old itself, where the first optimiser step begins, it is 0. The weights are `past.root_weight` and
    `past.kl_weight`, which `adapted_penalties` moves. *Differs from the paper*, which has the KL over all actions of a
    state: here it is that of the action taken, never negative, of the same mean; the mean of its root is smaller.
    """

    reads = ("old_bt", "past.root_weight", "past.kl_weight")
    says = "a weight times the root of the KL from the old policy, plus another times that KL"
    equation = "+ β₁·√k + β₂·k,  k = ρ - 1 - log ρ"
    plain = (
        "log_bt = torch.where(active_bt, logp_bt - old_bt, 0)\n"
        "kl_bt = torch.expm1(held(log_bt)) - log_bt\n"
        f"root_bt = (kl_bt.clamp(min=0) + {LEAST!r}).sqrt()\n"
        'term_bt = past["root_weight"][:, None] * root_bt + past["kl_weight"][:, None] * kl_bt\n'
        "loss = loss + (weight_bt * term_bt).sum()"
    )

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return β₁·√(k_t + 1e-12) + β₂·k_t."""
        log_bt = torch.where(batch.active_bt, log_ratio(logp_bt, batch), 0)
        kl_bt = torch.expm1(held(log_bt)) - log_bt
        root_b1, kl_b1 = (batch.need(f"past.{name}", self.name)[:, None] for name in ("root_weight", "kl_weight"))
        term_bt = root_b1 * (kl_bt.clamp(min=0) + LEAST).sqrt() + kl_b1 * kl_bt
        return TokenLoss(term_bt, {"kl_old": kl_bt})
