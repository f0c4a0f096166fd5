"""Policy gradients with a detached ratio as weight: the ratio scales a token's gradient but is not differentiated.

Unlike PPO's clip, a bound here limits the weight and every token keeps a gradient, unless a mask says otherwise.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Bound, Surrogate, idle_ratio
from grouprl.algorithms.objective.ratio import Against, RatioLevel, log_ratio, ratio_code, symbol
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch

Limit = Annotated[float, Field(ge=0)]


@part("objective")
class Capped(Surrogate):
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
    reads = ("{against}_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -sg[clip(ρ_t)]·A_t·log π(y_t)."""
        adv_bt = batch.need("advantage_bt", self.name)
        ratio_bt = log_ratio(logp_bt.detach(), batch, self.ratio, self.against).exp()
        weight_bt = torch.where(
            adv_bt < 0,
            bounded(ratio_bt, self.floor_negative, self.cap_negative),
            bounded(ratio_bt, self.floor, self.cap),
        )
        capped_bt = ((weight_bt != ratio_bt) & (adv_bt != 0)).to(adv_bt.dtype)
        metrics = {"capped_fraction": capped_bt} if self._caps() else {}
        return TokenLoss(-weight_bt * adv_bt * logp_bt, metrics)

    def _caps(self) -> bool:
        limits = (self.floor, self.cap, self.floor_negative, self.cap_negative)
        return any(limit is not None for limit in limits)

    @override
    def code(self) -> str:
        good, bad = (self.floor, self.cap), (self.floor_negative, self.cap_negative)
        held, other = (
            "ratio_bt" if limits == (None, None) else f"ratio_bt.clamp({limits[0]!r}, {limits[1]!r})"
            for limits in (good, bad)
        )
        weight = held if good == bad else f"torch.where(adv_bt < 0, {other}, {held})"
        ratio = ratio_code(self.ratio, self.against, "logp_bt.detach()")
        return "\n".join([*ratio, f"loss_bt = -{weight} * adv_bt * logp_bt"])

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
        """Say that the cap has no effect if the ratio is always 1."""
        return [] if not self._caps() else idle_ratio(run, self.against, "the cap of the ratio")


def bounded(ratio_bt: Tensor, low: float | None, high: float | None) -> Tensor:
    """Return ratios [B,T] within bounds; None: no bound."""
    return ratio_bt if low is None and high is None else ratio_bt.clamp(low, high)


def _interval(low: float | None, high: float | None) -> str:
    return f"[{0 if low is None else low:g}, {'∞' if high is None else f'{high:g}'}]"
