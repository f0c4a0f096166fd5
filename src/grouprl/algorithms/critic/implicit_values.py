"""Values near the best of what is in the data, without a policy: losses of dual RL on temporal differences."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.returns import gae
from grouprl.algorithms.critic.critic import Critic
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.ratio import within
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch
from grouprl.core.numbers import Share

Divergence = Literal["total_variation", "chi_square", "conjugate"]
LOWEST = {"chi_square": 0.0, "conjugate": -2.0}
"""The δ from which F rises."""


def above(delta: Tensor, divergence: Divergence) -> Tensor:
    """Return F(δ): max(δ, 0), (δ + δ²/4) of max(δ, 0), or f*(δ) of χ², which is δ + δ²/4 from -2 on and -1 below."""
    if divergence == "total_variation":
        return within(delta, low=0)
    over = within(delta, low=LOWEST[divergence])
    return over + over.square() / 4


def slope_above(delta: Tensor, divergence: Divergence) -> Tensor:
    """Return F'(δ)."""
    if divergence == "total_variation":
        return (delta > 0).to(delta.dtype)
    return torch.where(delta > LOWEST[divergence], 1 + delta / 2, 0)


@part("critic")
class ImplicitValues(Critic):
    """λ·F(δ) - (1 - λ)·δ with δ_t = r_t + γV_old,{t+1} - V_t, V_old those of the step's beginning (arXiv:2302.08560).

    The minimum is between the mean and the best of what followed a state in the data, nearer to the best the larger λ:
    of total variation, the quantile at which a share (1 - λ)/λ lies above it. No action outside the data is ever
    asked for. F is that of total variation or χ² as f-DVL has them, or the full conjugate of χ² (ODICE). *Differs from
    the paper*: r + γV_old(s') stands for its Q(s, a), and V_old is renewed with every step, not by a moving average.
    """

    lam: Annotated[float, Field(gt=0.5, lt=1)] = 0.8
    gamma: Share = 0.99
    divergence: Divergence = "chi_square"
    coef: Annotated[float, Field(ge=0)] = 1.0
    reads = ("value_bt",)

    def targets(self, batch: Batch) -> Tensor:
        """Return [B,T] r_t + γV_old,{t+1}."""
        value_bt = torch.where(batch.mask_bt, batch.need("value_bt", self.name), 0)
        return gae(batch, self.gamma, batch.reward_b.new_zeros(batch.size[0])) + value_bt

    def __call__(self, value_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return value losses [B,T], differentiable in `value_bt`."""
        target_bt = batch.need("return_bt", self.name)
        delta_bt = target_bt - value_bt
        loss_bt = self.lam * above(delta_bt, self.divergence) - (1 - self.lam) * delta_bt
        metrics = {"value_error": delta_bt.square(), "value_mean": value_bt, "return_mean": target_bt}
        return TokenLoss(self.coef * loss_bt, metrics)

    @override
    def words(self) -> str:
        names = {"total_variation": "total variation", "chi_square": "χ²", "conjugate": "the full conjugate of χ²"}
        return (
            f"values of stored states, nearer to the best that followed them than to the mean (λ {self.lam:g}, "
            f"{names[self.divergence]}, discount {self.gamma:g})"
        )

    @override
    def formula(self) -> str:
        f = {"total_variation": "max(δ, 0)", "chi_square": "(δ + δ²/4)·1[δ > 0]", "conjugate": "f*(δ)"}[self.divergence]
        scale = "" if self.coef == 1 else f"{self.coef:g} · "
        return f"{scale}[{self.lam:g}·{f} - {1 - self.lam:g}·δ],  δ_t = r_t + {self.gamma:g}·V_old,{{t+1}} - V_t"
