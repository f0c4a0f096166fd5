"""Divergences that keep the abilities of the initial policy, measured on its own completions."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.lines import is_from
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.ratio import held
from grouprl.algorithms.part import part
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative

Divergence = Literal["forward_kl", "js", "alpha"]
_F = {
    "forward_kl": "u - log u - 1",
    "js": "u·log u - (u+1)·log((u+1)/2)",
    "alpha": "(u^(1-a) - (1-a)u - a)/(a(a-1))",
}


@part("regularize")
class Coverage(Regularizer):
    """η·f(u), u = π(y_t)/π_0(y_t), on completions that the initial policy π_0 sampled (DPH-RL, arXiv:2509.07430).

    In expectation over π_0 "forward_kl" is KL(π_0 || π), "js" twice the Jensen-Shannon divergence, "alpha" the
    α-divergence of order `alpha`. f(1) = f'(1) = 0 in all. π_0's log-probs are the stored `behavior_bt`; no reference
    model is used. Rows of other sources are left alone. log u is held at 20 or below, with its slope.
    """

    coef: NonNegative = 0.01
    divergence: Divergence = "forward_kl"
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.2
    reads = ("behavior_bt",)
    idle_at = ("coef", 0, "the coverage term has no effect: its coefficient is 0")

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return η·f(u_t) on rows from the initial policy."""
        there_bt = batch.active_bt & batch.from_source("reference")[:, None]
        gap_bt = logp_bt - batch.need("behavior_bt", self.name)
        value_bt = self.value(held(torch.where(there_bt, gap_bt, 0), low=None))
        return TokenLoss(self.coef * torch.where(there_bt, value_bt, 0), {})

    @override
    def code(self) -> str:
        a = self.alpha
        value = {
            "forward_kl": "log_bt.expm1() - log_bt",
            "js": "u_bt * log_bt - (u_bt + 1) * (torch.log1p(u_bt) - math.log(2))",
            "alpha": f"(({1 - a!r} * log_bt).exp() - {1 - a!r} * u_bt - {a!r}) / {a * (a - 1)!r}",
        }[self.divergence]
        ratio = [] if self.divergence == "forward_kl" else ["u_bt = log_bt.exp()"]
        return "\n".join(
            [
                f"there_bt = active_bt & ({is_from('reference')})[:, None]",
                "log_bt = held(torch.where(there_bt, logp_bt - behavior_bt, 0), low=None)",
                *ratio,
                f"loss = loss + {self.coef!r} * (weight_bt * torch.where(there_bt, {value}, 0)).sum()",
            ]
        )

    def value(self, log_bt: Tensor) -> Tensor:
        """Return f(u) from log u."""
        u_bt = log_bt.exp()
        if self.divergence == "forward_kl":
            return torch.expm1(log_bt) - log_bt
        if self.divergence == "js":
            return u_bt * log_bt - (u_bt + 1) * (torch.log1p(u_bt) - math.log(2))
        a = self.alpha
        return (((1 - a) * log_bt).exp() - (1 - a) * u_bt - a) / (a * (a - 1))

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows that the initial policy did not sample, or all rows if the coefficient is 0."""
        return super().zero_rows(batch) | ~batch.from_source("reference")

    @override
    def words(self) -> str:
        name = {"forward_kl": "forward KL", "js": "Jensen-Shannon", "alpha": f"α-divergence ({self.alpha:g})"}
        return f"{self.coef:g} times {name[self.divergence]} from the initial policy, on stored completions of its own"

    @override
    def formula(self) -> str:
        return f"+ {self.coef:g} · [{_F[self.divergence]}],  u = π(y_t)/π_0(y_t), on completions of π_0"
