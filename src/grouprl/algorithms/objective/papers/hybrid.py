"""Policy gradient on sampled completions, likelihood on those of another source (HPT)."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.lines import is_from
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.objective.ratio import log_ratio, ratio_code, symbol
from grouprl.algorithms.part import part
from grouprl.algorithms.sources import PLURAL, Source
from grouprl.core.batch import Batch


@part("objective")
class HybridGradient(Objective):
    """Importance-weighted policy gradient on sampled completions, likelihood on one source (UPGE/HPT,
    arXiv:2509.04419).

    -ρ_t A_t without clip; -A_t log π(y_t) on rows of `source`, which have no ratio because no policy sampled them.
    """

    source: Source = "demonstration"
    reads = ("old_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -A log π on the source's rows, -A ρ elsewhere."""
        ratio_bt = log_ratio(logp_bt, batch).exp()
        taken_bt = torch.where(batch.from_source(self.source)[:, None], logp_bt, ratio_bt)
        return TokenLoss(-batch.need("advantage_bt", self.name) * taken_bt, {})

    @override
    def code(self) -> str:
        taken = f"torch.where(({is_from(self.source)})[:, None], logp_bt, ratio_bt)"
        return "\n".join([*ratio_code("token", "old"), f"loss_bt = -adv_bt * {taken}"])

    @override
    def words(self) -> str:
        return (
            f"likelihood of {PLURAL[self.source]}; the other completions by their ratio times advantage, without clip"
        )

    @override
    def formula(self) -> str:
        return f"-A·log π(y_t) on {PLURAL[self.source]}, else -ρ·A,  {symbol('token', 'old')}"
