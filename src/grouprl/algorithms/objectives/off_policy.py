"""Policy gradients for completions of an older policy: a region of ratios that may act, baselines, drift and dropping.

Group-relative REINFORCE needs no importance weight to be right off-policy; what keeps it stable is which tokens and
completions act at all (arXiv:2509.24203).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantages.normalize import Normalize
from grouprl.algorithms.filters.selection import Selection
from grouprl.algorithms.objectives.objective import OLD_BOUNDS, Bound, LowBound, Objective, idle_ratio
from grouprl.algorithms.objectives.ratio import LOG_LIMIT, log_ratio
from grouprl.algorithms.part import RunFacts, TokenLoss, part
from grouprl.algorithms.regularizers.regularize import Regularizer
from grouprl.algorithms.token_weights.weighting import Weighting
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative

Region = Literal["none", "one_side", "two_side", "ring"]
_REGION = {
    "none": "every token acts",
    "one_side": "tokens already moved beyond the band in the direction of their advantage are left out",
    "two_side": "tokens outside the band are left out",
    "ring": "tokens outside the band are left out, unless they lie far on the side against their advantage",
}


@part("objective")
class RegionGradient(Objective):
    """-A·log π·[ρ in a region], the ratio neither weight nor differentiated (REC, arXiv:2509.24203; CPGD's clip).

    `one_side`: the tokens for which PPO's clip has a gradient. `two_side`: 1-clip_low ≤ ρ ≤ 1+clip_high. `ring`: that
    band, and ρ ≤ 1-far_low where A > 0, ρ ≥ 1+far_high where A < 0. `correction="importance"` multiplies by
    the detached ratio.
    """

    region: Region = "one_side"
    clip_low: LowBound = 0.2
    clip_high: Bound = 0.2
    far_low: LowBound = 0.6
    far_high: Bound = 2.0
    correction: Literal["none", "importance"] = "none"
    renamed: ClassVar[Mapping[str, str]] = OLD_BOUNDS
    reads = ("old_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """-A_t·w_t·I_t·log π(y_t)."""
        adv_bt = batch.need("advantage_bt", self.name)
        ratio_bt = log_ratio(logp_bt.detach(), batch).exp()
        above_bt, below_bt = self._outside(ratio_bt, adv_bt)
        keep_bt = (~(above_bt | below_bt)).to(adv_bt.dtype)
        if self.correction == "importance":
            keep_bt = keep_bt * ratio_bt
        if self.region == "none":
            return TokenLoss(-keep_bt * adv_bt * logp_bt, {})
        acts_bt = adv_bt != 0
        high_bt, low_bt = (above_bt & acts_bt).to(adv_bt.dtype), (below_bt & acts_bt).to(adv_bt.dtype)
        metrics = {"clip_fraction": high_bt + low_bt, "clip_fraction_high": high_bt, "clip_fraction_low": low_bt}
        return TokenLoss(-keep_bt * adv_bt * logp_bt, metrics)

    def _outside(self, ratio_bt: Tensor, adv_bt: Tensor) -> tuple[Tensor, Tensor]:
        """[B,T] bool each: tokens left out because ρ is too large, and because it is too small."""
        above_bt, below_bt = ratio_bt > 1 + self.clip_high, ratio_bt < 1 - self.clip_low
        if self.region == "none":
            return torch.zeros_like(above_bt), torch.zeros_like(below_bt)
        if self.region == "one_side":
            return above_bt & (adv_bt > 0), below_bt & (adv_bt < 0)
        if self.region == "ring":
            above_bt = above_bt & ~((adv_bt <= 0) & (ratio_bt >= 1 + self.far_high))
            below_bt = below_bt & ~((adv_bt >= 0) & (ratio_bt <= 1 - self.far_low))
        return above_bt, below_bt

    @override
    def words(self) -> str:
        weight = " times its ratio (not differentiated)" if self.correction == "importance" else ", without ratio"
        band = "" if self.region == "none" else f" (band [{1 - self.clip_low:g}, {1 + self.clip_high:g}]{self._far()})"
        return f"push each token's log-prob by its advantage{weight}; {_REGION[self.region]}{band}"

    def _far(self) -> str:
        return f", far: below {1 - self.far_low:g} or above {1 + self.far_high:g}" if self.region == "ring" else ""

    @override
    def formula(self) -> str:
        rho = "·sg[ρ_t]" if self.correction == "importance" else ""
        band = f"{1 - self.clip_low:g} ≤ ρ_t ≤ {1 + self.clip_high:g}"
        far_low, far_high = f"{1 - self.far_low:g}", f"{1 + self.far_high:g}"
        one_side = f"·[ρ_t ≤ {1 + self.clip_high:g} if A>0, ρ_t ≥ {1 - self.clip_low:g} if A<0]"
        ring = f"·[{band}, or ρ_t ≤ {far_low} if A>0, or ρ_t ≥ {far_high} if A<0]"
        region = {"none": "", "one_side": one_side, "two_side": f"·[{band}]", "ring": ring}[self.region]
        return f"-A_t{rho}·log π(y_t){region}" + ("" if not rho and not region else ",  ρ_t = π(y_t)/π_old(y_t)")

    def idle(self, run: RunFacts) -> list[str]:
        """A ratio that is always 1 is always inside."""
        if self.region == "none":
            return []
        return idle_ratio(run, "old", f"the region [{1 - self.clip_low:g}, {1 + self.clip_high:g}]")


@part("regularize")
class PolicyDrift(Regularizer):
    """α·min(sg[ρ]-1, cap)·log π: the gradient of KL(π_old || π) by k3, its weight capped (CPGD, arXiv:2505.12504)."""

    coef: NonNegative = 1e-3
    cap: Annotated[float, Field(gt=0)] | None = 2.0
    reads = ("old_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """α·min(ρ_t - 1, cap)·log π(y_t), ρ detached."""
        excess_bt = torch.where(batch.active_bt, log_ratio(logp_bt.detach(), batch).expm1(), 0)
        weight_bt = excess_bt if self.cap is None else excess_bt.clamp(max=self.cap)
        return TokenLoss(self.coef * weight_bt * logp_bt, {})

    @override
    def words(self) -> str:
        cap = "" if self.cap is None else f", the weight at most {self.cap:g}"
        return f"{self.coef:g} times the drift from the old policy: tokens are pulled back by how far ρ left 1{cap}"

    @override
    def formula(self) -> str:
        weight = "(ρ_t - 1)" if self.cap is None else f"min(ρ_t - 1, {self.cap:g})"
        return f"+ {self.coef:g} · sg[{weight}]·log π(y_t)"

    def idle(self, run: RunFacts) -> list[str]:
        """No coefficient or no distance."""
        if self.coef == 0:
            return ["the policy drift has no effect: its coefficient is 0"]
        return idle_ratio(run, "old", "the policy drift")


@part("advantage_transform")
class Shift(Normalize):
    """Add a constant to every advantage: the baseline is lowered by it (AsymRE, arXiv:2506.20520, δ = -amount).

    Above 0 also completions as good as the average are imitated, and good ones push more than bad ones pull.
    """

    amount: float = 0.1
    says = "every advantage raised by {amount:g} (the baseline lies that much lower)"
    equation = "A ← A + {amount:g}"

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """A + amount on rows that count in statistics."""
        return torch.where(batch.active_bt & batch.stats_b[:, None], adv_bt + self.amount, adv_bt)


@part("token_weight")
class AdvantageTilt(Weighting):
    """exp(A/τ): good completions weigh more, bad ones less (RED-Weight, arXiv:2509.24203); exponent within ±20."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    says = "weigh every token by exp(advantage / {temperature:g})"
    equation = "× exp(A/{temperature:g})"

    def __call__(self, batch: Batch) -> Tensor:
        """exp(A_t/τ)."""
        return (batch.need("advantage_bt", self.name) / self.temperature).clamp(-LOG_LIMIT, LOG_LIMIT).exp()


@part("filter")
class BalanceNegatives(Selection):
    """Where a group has more completions below its mean than others, drop so many of them that both are equal
    (RED-Drop).

    Dropped completions leave the group statistics and get advantage 0, but stay in the denominators, as in the authors'
    code (arXiv:2509.24203). Which are dropped is sampled from the digits of their mean log-prob, so that a batch in
    another order, or cut in other pieces, drops the same ones.
    """

    says = "leave out completions below their group's mean, sampled at random, until they are no more than the others"
    reads = ("old_bt",)

    def __call__(self, batch: Batch) -> Batch:
        """Take surplus negatives out of the statistics."""
        reward_b, id_b, stats_b = batch.total_reward_b, batch.group_b, batch.stats_b
        weight_b = stats_b.to(batch.dtype)
        below_b = reward_b < levels.mean(reward_b, id_b, weight_b)
        below_b &= stats_b & levels.differs(reward_b, id_b, weight_b)
        positives_b = levels.total((stats_b & ~below_b).to(batch.dtype), id_b)
        lot_b = torch.where(below_b, self._lots(batch), 2.0)
        return batch.replace(stat_b=stats_b & ~(below_b & (levels.rank(lot_b, id_b) >= positives_b)))

    def _lots(self, batch: Batch) -> Tensor:
        """[B] numbers in [0, 1), from digits of the mean log-prob that rounding does not reach."""
        old_bt = torch.where(batch.mask_bt, batch.need("old_bt", self.name), 0)
        return (997 * old_bt.sum(1) / batch.length_b.clamp(min=1)).frac().abs()

    def idle(self, run: RunFacts) -> list[str]:
        """A lone completion is never below the mean, nor are more than half of two."""
        return ["balance_negatives has no effect: groups hold fewer than 3 completions"] if run.group_size < 3 else []
