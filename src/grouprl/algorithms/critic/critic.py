"""The critic's loss: regression of values on returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.advantage.returns import GAE
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.ratio import within
from grouprl.algorithms.part import Part, part
from grouprl.core.batch import Batch
from grouprl.core.numbers import Share

if TYPE_CHECKING:
    from torch import Tensor


class Critic(Part):
    """Base: targets of a value head, and its loss."""

    def targets(self, batch: Batch) -> Tensor:
        """Return [B,T] the targets of the values; computed once per rollout, before the advantages."""
        raise NotImplementedError

    def __call__(self, value_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return value losses [B,T], differentiable in `value_bt`."""
        raise NotImplementedError


@part("critic")
class ValueLoss(Critic):
    """c·½·max((V - G)², (V_clip - G)²) with targets G = A_GAE(λ) + V_old (PPO with a value head).

    V_clip stays within ±`clip` of the value at the start of the update; None turns that off. λ = 1 makes the targets
    Monte-Carlo returns whatever the critic says (VC-PPO, arXiv:2503.01491).
    """

    lam: Share = 0.95
    gamma: Share = 1.0
    clip: Annotated[float, Field(gt=0)] | None = 0.2
    coef: Annotated[float, Field(ge=0)] = 1.0
    reads = ("value_bt",)

    def targets(self, batch: Batch) -> Tensor:
        """Return [B,T] returns that the values are fitted to; never whitened."""
        value_bt = torch.where(batch.mask_bt, batch.need("value_bt", self.name), 0)
        return GAE(gamma=self.gamma, lam=self.lam)(batch) + value_bt

    def __call__(self, value_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return value losses [B,T], differentiable in `value_bt`."""
        return_bt = batch.need("return_bt", self.name)
        error_bt = (value_bt - return_bt).square()
        metrics = {"value_error": error_bt, "value_mean": value_bt, "return_mean": return_bt}
        if self.clip is not None:
            old_bt = batch.need("value_bt", self.name)
            clipped_bt = old_bt + within(value_bt - old_bt, -self.clip, self.clip)
            clipped_error_bt = (clipped_bt - return_bt).square()
            held_bt = (value_bt - old_bt).detach().abs() > self.clip  # elsewhere both errors differ by rounding alone
            metrics["value_clip_fraction"] = (held_bt & (clipped_error_bt > error_bt)).to(value_bt.dtype)
            error_bt = torch.maximum(error_bt, clipped_error_bt)
        return TokenLoss(self.coef * 0.5 * error_bt, metrics)

    @override
    def words(self) -> str:
        clip = "" if self.clip is None else f", moving at most {self.clip:g} per update"
        return f"a critic fitted to returns (lambda {self.lam:g}, discount {self.gamma:g}){clip}, weight {self.coef:g}"

    @override
    def formula(self) -> str:
        error = "(V - G)²" if self.clip is None else "max((V - G)², (V_clip - G)²)"
        return f"{self.coef:g} · ½·{error},  G = A_GAE({self.lam:g}) + V_old"
