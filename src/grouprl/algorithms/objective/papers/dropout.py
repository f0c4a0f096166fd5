"""Sample dropout: the tokens that contribute most to the variance of the surrogate leave an update."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.lines import clip_lines
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.adaptive_clip import Dual
from grouprl.algorithms.objective.objective import Bound, LowBound, Surrogate, clipped
from grouprl.algorithms.objective.ratio import log_ratio, ratio_code, symbol
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch

TIE = 1e-6
"""Relative difference below which scores count as equal, so that rounding does not decide which tokens leave."""


@part("objective")
class DropoutClip(Surrogate):
    """PPO clip on the tokens that remain after those of smallest score are dropped (D-PPO, arXiv:2310.20380).

    With x = ρA, detached, over the optimiser step: `score="correlation"` is x·Σ_j x_j, `score="magnitude"` is |x|. Of
    the tokens with x > 0 and of those with x < 0 the share `drop` of lowest score leaves, and the loss of the rest is
    scaled up by N/N_kept. Tokens that tie with the first one kept stay too.
    """

    drop: Annotated[float, Field(ge=0, lt=1)] = 0.2
    score: Literal["correlation", "magnitude"] = "correlation"
    clip_low: LowBound = 0.2
    clip_high: Bound = 0.2
    dual_clip: Dual = None
    couples: ClassVar[str] = "batch"
    reads = ("old_bt",)
    idle_at = ("drop", 0, "the sample dropout has no effect: drop is 0")

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return [kept]·N/N_kept·max(-Aρ, -A clip(ρ))."""
        adv_bt = batch.need("advantage_bt", self.name)
        ratio_bt = log_ratio(logp_bt, batch).exp()
        keep_bt = self.keep_mask(ratio_bt.detach() * adv_bt, batch.active_bt)
        bounds = torch.full_like(adv_bt, 1 - self.clip_low), torch.full_like(adv_bt, 1 + self.clip_high)
        out = clipped(ratio_bt, adv_bt, *bounds, self.dual_clip)
        live_bt = batch.active_bt & (adv_bt != 0)
        scale = live_bt.to(adv_bt.dtype).sum() / (live_bt & keep_bt).sum().clamp(min=1)
        dropped_bt = (~keep_bt).to(adv_bt.dtype)
        return TokenLoss(torch.where(keep_bt, out.loss_bt * scale, 0), {**out.metrics, "dropped_fraction": dropped_bt})

    @override
    def code(self) -> str:
        pull = "x_n.sum() / x_n.abs().sum().clamp(min=1e-30)"
        score = "x_bt.abs()" if self.score == "magnitude" else f"x_bt * torch.where(pull.abs() > {TIE!r}, pull, 0)"
        return "\n".join(
            [
                *ratio_code("token", "old"),
                "x_bt = ratio_bt.detach() * adv_bt",
                *([] if self.score == "magnitude" else ["x_n = x_bt[active_bt]", f"pull = {pull}"]),
                f"score_bt, keep_bt = {score}, torch.ones_like(active_bt)",
                "for side_bt in (active_bt & (x_bt > 0), active_bt & (x_bt < 0)):",
                f"    if dropped := int({self.drop!r} * len(score_bt[side_bt])):",
                "        least = score_bt[side_bt].kthvalue(dropped + 1).values",
                f"        keep_bt = keep_bt & (~side_bt | (score_bt >= least - {TIE!r} * least.abs()))",
                *clip_lines(repr(1 - self.clip_low), repr(1 + self.clip_high), self.dual_clip),
                "live_bt = active_bt & (adv_bt != 0)",
                "scale = live_bt.sum().to(adv_bt.dtype) / (live_bt & keep_bt).sum().clamp(min=1)",
                "loss_bt = torch.where(keep_bt, loss_bt * scale, 0)",
            ]
        )

    def keep_mask(self, x_bt: Tensor, active_bt: Tensor) -> Tensor:
        """Return [B,T] bool: tokens that stay."""
        score_bt = x_bt.abs() if self.score == "magnitude" else x_bt * self._pull(x_bt[active_bt])
        keep_bt = torch.ones_like(active_bt)
        for side_bt in (active_bt & (x_bt > 0), active_bt & (x_bt < 0)):
            score_n = score_bt[side_bt]
            dropped = int(self.drop * len(score_n))
            if dropped:
                first = score_n.kthvalue(dropped + 1).values
                keep_bt &= ~side_bt | (score_bt >= first - TIE * first.abs())
        return keep_bt

    def _pull(self, x_n: Tensor) -> Tensor:
        """Return Σ x over Σ |x|: 0 if the signs balance, so that no token is like the others."""
        share = x_n.sum() / x_n.abs().sum().clamp(min=1e-30)
        return torch.where(share.abs() > TIE, share, 0)

    @override
    def words(self) -> str:
        by = "least like the others (x·Σx)" if self.score == "correlation" else "of smallest |x|"
        return (
            f"PPO clip within [{1 - self.clip_low:g}, {1 + self.clip_high:g}] without the {self.drop:.0%} of "
            f"tokens {by}, "
            "x = ρA, of each sign"
        )

    @override
    def formula(self) -> str:
        score = "x·Σ_j x_j" if self.score == "correlation" else "|x|"
        clip = f"-min(ρ·A, clip(ρ, {1 - self.clip_low:g}, {1 + self.clip_high:g})·A)"
        return (
            f"[score in the upper {1 - self.drop:.0%}]·{clip},  score = {score}, x = sg(ρA),  {symbol('token', 'old')}"
        )
