"""PPO's clip of a ratio that is bounded before (StableReinforce, arXiv:2505.02835; TRL's delta; GSPO in verl)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.lines import clipped_at
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Clipped, clip_metrics
from grouprl.algorithms.objective.ratio import log_ratio, ratio_code, within
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch
from grouprl.core.numbers import Positive


@part("objective")
class BoundedClip(Clipped):
    """PPO's clipped surrogate with min(ρ, bound) in its free branch, for either sign of A (TRL's delta).

    A `bound` within the clip is the upper bound of the ratio where A > 0, and does nothing where A < 0. Above
    1+clip_high it is INTELLECT-2's two-sided clip, the `dual_clip` of `clipped`.
    """

    bound: Positive = 1.0
    dual_clip: None = None

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return max(-A min(ρ, bound), -A clip(ρ, 1-clip_low, 1+clip_high))."""
        adv_bt = batch.need("advantage_bt", self.name)
        ratio_bt = log_ratio(logp_bt, batch, self.ratio, self.against).exp()
        low, high = 1 - self.clip_low, 1 + self.clip_high
        free_bt, clipped_bt = (
            -adv_bt * each for each in (within(ratio_bt, high=self.bound), within(ratio_bt, low, high))
        )
        loss_bt = torch.maximum(free_bt, clipped_bt)
        return TokenLoss(loss_bt, clip_metrics(ratio_bt, adv_bt, low, min(high, self.bound)))

    @override
    def code(self) -> str:
        free = f"within(ratio_bt, high={self.bound!r})"
        clipped = clipped_at("ratio_bt", repr(1 - self.clip_low), repr(1 + self.clip_high))
        loss = f"loss_bt = torch.maximum(-adv_bt * {free}, -adv_bt * {clipped})"
        return "\n".join([*ratio_code(self.ratio, self.against), loss])

    @override
    def words(self) -> str:
        return f"{super().words()}; the ratio of the free branch is at most {self.bound:g}"

    @override
    def formula(self) -> str:
        return super().formula().replace("min(ρ·A,", f"min(min(ρ, {self.bound:g})·A,")


@part("objective")
class PreClipped(Clipped):
    """PPO's clipped surrogate of a ratio clamped to [1/bound, bound] before it is exponentiated; no gradient beyond."""

    bound: Annotated[float, Field(gt=1)] = 1000.0

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return the clipped loss with log ρ clamped to ±log bound."""
        anchor_bt, limit = batch.need(f"{self.against}_bt", self.name), math.log(self.bound)
        return super().__call__(anchor_bt + within(logp_bt - anchor_bt, -limit, limit), batch)

    @override
    def code(self) -> str:
        limit, anchor = math.log(self.bound), f"{self.against}_bt"
        near = f"near_bt = {anchor} + (logp_bt - {anchor}).clamp({-limit!r}, {limit!r})"
        return f"{near}\n{super().code().replace('logp_bt', 'near_bt')}"

    @override
    def words(self) -> str:
        return f"{super().words()}; the ratio is first held in [{1 / self.bound:g}, {self.bound:g}]"

    @override
    def formula(self) -> str:
        return f"{super().formula()},  log ρ held in ±log {self.bound:g}"


@part("objective")
class CappedLogRatio(Clipped):
    """PPO's clipped surrogate of a ratio whose logarithm is at most `log_cap`; no gradient beyond (GSPO in verl).

    The cap is far above every clip, so it acts where A < 0 alone: such tokens have the ratio e^log_cap and no gradient.
    """

    log_cap: Positive = 10.0

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return the clipped loss with log ρ at most `log_cap`."""
        log_bt = within(log_ratio(logp_bt, batch, self.ratio, self.against), high=self.log_cap)
        return self.surrogate(log_bt.exp(), batch)

    @override
    def code(self) -> str:
        ratio, *loss = super().code().partition("loss_bt = ")
        return f"{ratio}ratio_bt = ratio_bt.clamp(max={math.exp(self.log_cap)!r})\n{''.join(loss)}"

    @override
    def words(self) -> str:
        return f"{super().words()}; the log of the ratio is at most {self.log_cap:g}"

    @override
    def formula(self) -> str:
        return f"{super().formula()},  log ρ at most {self.log_cap:g}"
