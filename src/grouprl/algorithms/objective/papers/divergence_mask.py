"""DPPO: a trust region of divergences instead of ratios, and a cap on the ratio that is left (arXiv:2602.04879)."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Bound, Surrogate, idle_ratio
from grouprl.algorithms.objective.ratio import Against, log_ratio, ratio_code, symbol
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch

Divergence = Literal["tv", "kl"]
TINY = 1e-8
"""Smallest value of 1 - π in a logarithm, which keeps it finite, as in verl."""
_WORDS = {"tv": "probability has moved", "kl": "two-outcome KL to the older policy has grown"}


def binary_kl(logp_bt: Tensor, anchor_bt: Tensor) -> Tensor:
    """Return [B,T] KL between "this token" and "another", old against new: p log(p/q) + (1-p) log((1-p)/(1-q))."""
    new_bt, old_bt = logp_bt.exp(), anchor_bt.exp()
    rest_bt = (1 - old_bt) * ((1 - old_bt + TINY) / (1 - new_bt + TINY)).log()
    return old_bt * (anchor_bt - logp_bt) + rest_bt


@part("objective")
class DivergenceMask(Surrogate):
    """-M·sg[min(ρ, cap)]·A·log π; M drops tokens that have left the region in the direction of A (DPPO-Binary).

    `tv`: dropped are A > 0 with π - π_old > `clip_high`, and others with π_old - π > `clip_low`. `kl`: dropped are A >
    0 with π > π_old and a binary KL above `clip_high`, and others with π < π_old and one above `clip_low`. `cap` bounds
    the ratio that weighs the rest (None: no bound), which is not differentiated. Denominators still count dropped
    tokens.
    """

    divergence: Divergence = "tv"
    clip_low: Bound = 0.15
    clip_high: Bound = 0.15
    cap: Annotated[float, Field(gt=0)] | None = 20.0
    against: Against = "old"
    reads = ("{against}_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -M_t·sg[min(ρ_t, cap)]·A_t·log π(y_t)."""
        adv_bt, anchor_bt = batch.need("advantage_bt", self.name), batch.need(f"{self.against}_bt", self.name)
        now_bt = logp_bt.detach()
        ratio_bt = log_ratio(now_bt, batch, "token", self.against).exp()
        moved_bt = torch.where(batch.active_bt, now_bt.exp() - anchor_bt.exp(), 0)
        far_bt = (
            moved_bt.abs() if self.divergence == "tv" else torch.where(batch.active_bt, binary_kl(now_bt, anchor_bt), 0)
        )
        above_bt = (adv_bt > 0) & (moved_bt > 0) & ~(far_bt <= self.clip_high)
        below_bt = (adv_bt <= 0) & (moved_bt < 0) & ~(far_bt <= self.clip_low)
        keep_bt = (~(above_bt | below_bt)).to(adv_bt.dtype)
        weight_bt = ratio_bt if self.cap is None else ratio_bt.clamp(max=self.cap)
        acts_bt = adv_bt != 0
        high_bt, low_bt = above_bt.to(adv_bt.dtype), (below_bt & acts_bt).to(adv_bt.dtype)
        metrics = {"clip_fraction": high_bt + low_bt, "clip_fraction_high": high_bt, "clip_fraction_low": low_bt}
        if self.cap is not None:
            metrics["capped_fraction"] = ((ratio_bt > self.cap) & acts_bt).to(adv_bt.dtype) * keep_bt
        return TokenLoss(-keep_bt * weight_bt * adv_bt * logp_bt, metrics)

    def code(self) -> str:
        """Return the part as lines of plain torch; '' for the binary KL."""
        if self.divergence == "kl":
            return ""
        above = f"(adv_bt > 0) & ~(moved_bt <= {self.clip_high!r})"
        below = f"(adv_bt <= 0) & ~(moved_bt >= {-self.clip_low!r})"
        weight = "ratio_bt" if self.cap is None else f"ratio_bt.clamp(max={self.cap!r})"
        return "\n".join(
            [
                *ratio_code("token", self.against, "logp_bt.detach()"),
                f"moved_bt = torch.where(active_bt, logp_bt.detach().exp() - {self.against}_bt.exp(), 0)",
                f"out_bt = {above} | {below}",
                f"loss_bt = -adv_bt * ~out_bt * {weight} * logp_bt",
            ]
        )

    @override
    def words(self) -> str:
        cap = "" if self.cap is None else f", the ratio at most {self.cap:g}"
        return (
            f"advantage times the ratio, not differentiated{cap}; a token whose {_WORDS[self.divergence]} by more than "
            f"{self.clip_high:g} with a good completion, or by more than {self.clip_low:g} the other way with a bad "
            "one, is left out"
        )

    @override
    def formula(self) -> str:
        cap = "ρ_t" if self.cap is None else f"min(ρ_t, {self.cap:g})"
        if self.divergence == "tv":
            region = f"π - π_old ≤ {self.clip_high:g} if A>0, π_old - π ≤ {self.clip_low:g} else"
        else:
            region = f"KL2 ≤ {self.clip_high:g} or π ≤ π_old if A>0, KL2 ≤ {self.clip_low:g} or π ≥ π_old else"
        return f"-sg[{cap}]·A_t·log π(y_t)·[{region}],  {symbol('token', self.against)}"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that nothing is dropped if the policy cannot have moved."""
        return idle_ratio(run, self.against, "the divergence mask")
