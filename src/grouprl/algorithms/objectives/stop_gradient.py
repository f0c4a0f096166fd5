"""Policy gradients with a detached ratio as weight: the ratio scales a token's gradient but is not differentiated.

Unlike PPO's clip, a bound here limits the weight and every token keeps a gradient, unless a mask says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.objectives.objective import OLD_BOUNDS, Bound, LowBound, Objective, clip_metrics, idle_ratio
from grouprl.algorithms.objectives.ratio import Against, RatioLevel, log_ratio, symbol
from grouprl.algorithms.part import RunFacts, TokenLoss, part
from grouprl.core.batch import Batch

Limit = Annotated[float, Field(ge=0)]
OLD_LIMITS = {"low": "floor", "high": "cap", "low_negative": "floor_negative", "high_negative": "cap_negative"}
"""What the limits of a weight were called in the version before."""


@part("objective")
class Capped(Objective):
    """-sg[clip(ρ, low, high)]·A·log π: CISPO (arXiv:2506.13585), DISPO, ScaleRL's truncated importance sampling.

    Limits bound the ratio itself (1.2, not 0.2); None leaves that side free. Tokens of negative advantage have their
    own pair, `floor_negative` and `cap_negative`.
    """

    floor: Limit | None = None
    cap: Bound | None = 5.0
    floor_negative: Limit | None = None
    cap_negative: Bound | None = 5.0
    ratio: RatioLevel = "token"
    against: Against = "old"
    renamed: ClassVar[Mapping[str, str]] = OLD_LIMITS
    reads = ("{against}_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """-sg[clip(ρ_t)]·A_t·log π(y_t)."""
        adv_bt = batch.need("advantage_bt", self.name)
        ratio_bt = log_ratio(logp_bt.detach(), batch, self.ratio, self.against).exp()
        weight_bt = torch.where(
            adv_bt < 0,
            _bounded(ratio_bt, self.floor_negative, self.cap_negative),
            _bounded(ratio_bt, self.floor, self.cap),
        )
        capped_bt = ((weight_bt != ratio_bt) & (adv_bt != 0)).to(adv_bt.dtype)
        metrics = {"capped_fraction": capped_bt} if self._caps() else {}
        return TokenLoss(-weight_bt * adv_bt * logp_bt, metrics)

    def _caps(self) -> bool:
        limits = (self.floor, self.cap, self.floor_negative, self.cap_negative)
        return any(limit is not None for limit in limits)

    @override
    def words(self) -> str:
        other = "the old policy" if self.against == "old" else "the sampler"
        return (
            f"push each token's log-prob by its advantage times its ratio to {other}, the ratio held in "
            f"{self._limits()} and not differentiated; every token keeps a gradient"
        )

    @override
    def formula(self) -> str:
        return f"-sg[ρ held in {self._limits()}]·A·log π(y_t),  {symbol(self.ratio, self.against)}"

    def _limits(self) -> str:
        positive = _interval(self.floor, self.cap)
        negative = _interval(self.floor_negative, self.cap_negative)
        return positive if positive == negative else f"{positive} where A ≥ 0, {negative} where A < 0"

    def idle(self, run: RunFacts) -> list[str]:
        """A ratio that is always 1 is never capped."""
        return [] if not self._caps() else idle_ratio(run, self.against, "the cap of the ratio")


@part("objective", "masked_importance")
class MaskedImportanceObjective(Objective):
    """MiniRL: -M·sg[min(π/π_behavior, cap)]·A·log π, M zero where PPO's clip has no gradient (Qwen 2025).

    The mask judges staleness (ρ = π/π_old beyond 1-clip_low or 1+clip_high in the direction of A); the weight
    corrects for the sampler. Both are detached.
    """

    clip_low: LowBound = 0.2
    clip_high: Bound = 0.27
    cap: Bound | None = 5.0
    renamed: ClassVar[Mapping[str, str]] = OLD_BOUNDS
    reads = ("old_bt", "behavior_bt")

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """-M_t·w_t·A_t·log π(y_t)."""
        adv_bt = batch.need("advantage_bt", self.name)
        ratio_bt = log_ratio(logp_bt.detach(), batch).exp()
        metrics = clip_metrics(ratio_bt, adv_bt, 1 - self.clip_low, 1 + self.clip_high)
        sampler_bt = log_ratio(logp_bt.detach(), batch, "token", "behavior").exp()
        weight_bt = _bounded(sampler_bt, None, self.cap)
        metrics["capped_fraction"] = (weight_bt != sampler_bt).to(adv_bt.dtype)
        keep_bt = (1 - metrics["clip_fraction"]) * weight_bt
        return TokenLoss(-keep_bt * adv_bt * logp_bt, metrics)

    @override
    def words(self) -> str:
        return (
            f"push each token's log-prob by its advantage times its ratio to the sampler{_at_most(self.cap)}; "
            f"tokens already moved beyond [{1 - self.clip_low:g}, {1 + self.clip_high:g}] of the old policy are "
            "left out"
        )

    @override
    def formula(self) -> str:
        cap = "∞" if self.cap is None else f"{self.cap:g}"
        return f"-M_t·sg[min(π/π_behavior, {cap})]·A_t·log π(y_t)"

    def idle(self, run: RunFacts) -> list[str]:
        """The mask needs several updates, the weight an inexact sampler or several updates."""
        return idle_ratio(run, "old", f"the mask [{1 - self.clip_low:g}, {1 + self.clip_high:g}]")


def _bounded(ratio_bt: Tensor, low: float | None, high: float | None) -> Tensor:
    return ratio_bt if low is None and high is None else ratio_bt.clamp(low, high)


def _interval(low: float | None, high: float | None) -> str:
    return f"[{0 if low is None else low:g}, {'∞' if high is None else f'{high:g}'}]"


def _at_most(cap: float | None) -> str:
    return "" if cap is None else f" (at most {cap:g})"
