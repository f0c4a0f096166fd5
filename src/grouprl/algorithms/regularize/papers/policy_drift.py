"""A penalty on the distance from the policy at the start of the update (CPGD)."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import idle_ratio
from grouprl.algorithms.objective.ratio import log_ratio
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


@part("regularize")
class PolicyDrift(Regularizer):
    """α·min(sg[ρ]-1, cap)·log π: the gradient of KL(π_old || π) by k3, its weight capped (CPGD, arXiv:2505.12504)."""

    coef: NonNegative = 1e-3
    cap: Annotated[float, Field(gt=0)] | None = 2.0
    reads = ("old_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return α·min(ρ_t - 1, cap)·log π(y_t), ρ detached."""
        excess_bt = torch.where(batch.active_bt, log_ratio(logp_bt.detach(), batch).expm1(), 0)
        weight_bt = excess_bt if self.cap is None else excess_bt.clamp(max=self.cap)
        return TokenLoss(self.coef * weight_bt * logp_bt, {})

    @override
    def code(self) -> str:
        cap = "" if self.cap is None else f".clamp(max={self.cap!r})"
        return (
            f"excess_bt = held(torch.where(active_bt, logp_bt.detach() - old_bt, 0)).expm1(){cap}\n"
            f"loss = loss + {self.coef!r} * (weight_bt * excess_bt * logp_bt).sum()"
        )

    @override
    def words(self) -> str:
        cap = "" if self.cap is None else f", the weight at most {self.cap:g}"
        return f"{self.coef:g} times the drift from the old policy: tokens are pulled back by how far ρ left 1{cap}"

    @override
    def formula(self) -> str:
        weight = "(ρ_t - 1)" if self.cap is None else f"min(ρ_t - 1, {self.cap:g})"
        return f"+ {self.coef:g} · sg[{weight}]·log π(y_t)"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if its coefficient is 0 or with one update per rollout."""
        if self.coef == 0:
            return ["the policy drift has no effect: its coefficient is 0"]
        return idle_ratio(run, "old", "the policy drift")
