"""Policy gradients for completions of an older policy, on tokens whose ratio is within a region.

Group-relative REINFORCE needs no importance weight to be right off-policy; it stays stable because only some tokens and
completions have a gradient (arXiv:2509.24203).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Bound, LowBound, Surrogate, idle_ratio
from grouprl.algorithms.objective.ratio import log_ratio, ratio_code
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch

Region = Literal["none", "one_side", "two_side", "ring"]
_REGION = {
    "none": "every token acts",
    "one_side": "tokens already moved beyond the band in the direction of their advantage are left out",
    "two_side": "tokens outside the band are left out",
    "ring": "tokens outside the band are left out, unless they are far on the side against their advantage",
}


@part("objective")
class RegionGradient(Surrogate):
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
    reads = ("old_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -A_t·w_t·I_t·log π(y_t)."""
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
        """Return [B,T] bool each: tokens left out because ρ is too large, and because it is too small."""
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
    def code(self) -> str:
        if self.region == "ring":
            return ""
        ratio = ratio_code("token", "old", "logp_bt.detach()")
        above, below = f"ratio_bt > {1 + self.clip_high!r}", f"ratio_bt < {1 - self.clip_low!r}"
        left = {
            "none": [],
            "one_side": [f"left_bt = (({above}) & (adv_bt > 0)) | (({below}) & (adv_bt < 0))"],
            "two_side": [f"left_bt = ({above}) | ({below})"],
        }[self.region]
        weight = "ratio_bt" if self.correction == "importance" else "1.0"
        keep = f"keep_bt = torch.where(left_bt, 0, {weight})" if left else f"keep_bt = {weight}"
        return "\n".join([*ratio, *left, keep, "loss_bt = -keep_bt * adv_bt * logp_bt"])

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
        """Say that nothing is left out if the ratio is always 1."""
        if self.region == "none":
            return []
        return idle_ratio(run, "old", f"the region [{1 - self.clip_low:g}, {1 + self.clip_high:g}]")
