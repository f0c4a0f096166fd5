"""Clip bounds that follow a token's probability (DCPO), the balance of signs (BAPO), or entropy (HAPO)."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.lines import clip_lines
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.adaptive_clip import Dual
from grouprl.algorithms.objective.objective import Bound, LowBound, Surrogate, clipped, idle_ratio
from grouprl.algorithms.objective.ratio import log_ratio, ratio_code
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.sampling.papers.entropy_score import extent, score
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError


@part("objective")
class DynamicClip(Surrogate):
    """Clip bounds that widen for unlikely tokens: |ρ - 1|·π ≤ ε solved for ρ (DCPO, arXiv:2509.02333).

    With q = π_old(y_t): low = ½ + ½·sqrt(max(1 - 4ε_low/q, 0)), high = ½ + ½·sqrt(1 + 4ε_high/q), at most `cap`.
    """

    clip_low: Annotated[float, Field(ge=0)] = 0.16
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    cap: Annotated[float, Field(gt=1)] = 10.0
    dual_clip: Dual = 10.0
    says = (
        "PPO clip whose bounds widen for unlikely tokens: the ratio may change a token's probability by about "
        "{clip_low:g} down and {clip_high:g} up, but never grow beyond {cap:g}"
    )
    reads = ("old_bt",)

    def bounds(self, old_bt: Tensor) -> tuple[Tensor, Tensor]:
        """Return the [B,T] lower and upper bounds of the ratio for tokens of log-prob `old_bt`."""
        q_bt = old_bt.exp()
        low_bt = 0.5 + 0.5 * (1 - 4 * self.clip_low / q_bt).clamp(min=0).sqrt()
        return low_bt, (0.5 + 0.5 * (1 + 4 * self.clip_high / q_bt).sqrt()).clamp(max=self.cap)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -min(ρA, clip(ρ, low(q), high(q))A)."""
        ratio_bt = log_ratio(logp_bt, batch).exp()
        bounds = self.bounds(batch.need("old_bt", self.name))
        return clipped(ratio_bt, batch.need("advantage_bt", self.name), *bounds, self.dual_clip)

    @override
    def code(self) -> str:
        return "\n".join(
            [
                *ratio_code("token", "old"),
                "q_bt = torch.where(active_bt, old_bt, 0).exp()",
                f"low_bt = 0.5 + 0.5 * (1 - {4 * self.clip_low!r} / q_bt).clamp(min=0).sqrt()",
                f"high_bt = (0.5 + 0.5 * (1 + {4 * self.clip_high!r} / q_bt).sqrt()).clamp(max={self.cap!r})",
                *clip_lines("low_bt", "high_bt", self.dual_clip),
            ]
        )

    @override
    def formula(self) -> str:
        return (
            f"-min(ρ·A, clip(ρ, ½ + ½·sqrt(max(1 - {4 * self.clip_low:g}/q, 0)), "
            f"min(½ + ½·sqrt(1 + {4 * self.clip_high:g}/q), {self.cap:g}))·A),  q = π_old(y_t)"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the clip has no effect if the ratio is always 1."""
        return idle_ratio(run, "old", "the dynamic clip")


@part("objective")
class BalancedClip(Surrogate):
    """Clip bounds searched at every update until good tokens carry a share of the loss (BAPO, arXiv:2510.18927).

    Bounds are ratios. While the positive share is below `target`: raise the upper bound by `high_step` up to
    `high_end`, then the lower one by `low_step` up to `low_end`. The share is
    Σ_{A>0} π_b·min(ρ, high)·A / Σ π_b·|min(ρA, clip(ρ, low, high)A)|, over the whole optimiser step, detached.
    """

    low_start: LowBound = 0.6
    low_end: LowBound = 0.9
    high_start: Annotated[float, Field(gt=1)] = 1.2
    high_end: Annotated[float, Field(gt=1)] = 3.0
    low_step: Bound = 0.02
    high_step: Bound = 0.05
    target: Annotated[float, Field(ge=0, le=1)] = 0.4
    dual_clip: Dual = 3.0
    couples: ClassVar[str] = "batch"
    says = (
        "PPO clip whose bounds start at [{low_start:g}, {high_start:g}] and are raised at each update, the upper "
        "one first, up to [{low_end:g}, {high_end:g}], until tokens of positive advantage make up {target:.0%} "
        "of the loss"
    )
    equation = (
        "-min(ρ·A, clip(ρ, c_low, c_high)·A),  c raised until Σ_(A>0) π_b·|ℓ| ≥ {target:g}·Σ π_b·|ℓ|,  ℓ the "
        "clipped term"
    )
    reads = ("old_bt", "behavior_bt")

    def __post_init__(self) -> None:
        """Raise InputError if an end of a bound is below its start."""
        if self.low_start > self.low_end or self.high_start > self.high_end:
            raise InputError(
                f"balanced_clip: bounds from {self.low_start:g} to {self.low_end:g} and {self.high_start:g} to "
                f"{self.high_end:g}",
                "the search only raises bounds",
            )

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -min(ρA, clip(ρ, low, high)A) with the bounds found."""
        adv_bt = batch.need("advantage_bt", self.name)
        ratio_bt = log_ratio(logp_bt, batch).exp()
        low, high = self.search(ratio_bt.detach(), batch)
        low_bt, high_bt = torch.full_like(adv_bt, low), torch.full_like(adv_bt, high)
        out = clipped(ratio_bt, adv_bt, low_bt, high_bt, self.dual_clip)
        return TokenLoss(out.loss_bt, {**out.metrics, "clip_bound_low": low_bt, "clip_bound_high": high_bt})

    @override
    def code(self) -> str:
        return "\n".join(
            [
                *ratio_code("token", "old"),
                "mass_bt = torch.where(active_bt, adv_bt * behavior_bt.exp(), 0)",
                "def share(low, high):  # of good tokens in the loss",
                "    good = (mass_bt.clamp(min=0) * ratio_bt.detach().clamp(max=high)).sum()",
                "    bad = -(mass_bt.clamp(max=0) * ratio_bt.detach().clamp(min=low)).sum()",
                "    return good / (good + bad).clamp(min=1e-300)",
                f"lows = _stairs({self.low_start!r}, {self.low_end!r}, {self.low_step!r})",
                f"highs = _stairs({self.high_start!r}, {self.high_end!r}, {self.high_step!r})",
                f"high = next((high for high in highs if share(lows[0], high) >= {self.target!r}), highs[-1])",
                f"low = next((low for low in lows if share(low, high) >= {self.target!r}), lows[-1])",
                *clip_lines("low", "high", self.dual_clip),
            ]
        )

    def search(self, ratio_bt: Tensor, batch: Batch) -> tuple[float, float]:
        """Return the lower and upper bound of the ratio for the tokens of one optimiser step."""
        mass_bt = batch.need("advantage_bt", self.name) * batch.need("behavior_bt", self.name).exp()
        good_bt, bad_bt = batch.active_bt & (mass_bt > 0), batch.active_bt & (mass_bt < 0)
        good_n, good_ratio_n = mass_bt[good_bt], ratio_bt[good_bt]
        bad_n, bad_ratio_n = -mass_bt[bad_bt], ratio_bt[bad_bt]

        def short(low: float, high: float) -> bool:
            positive = float((good_n * good_ratio_n.clamp(max=high)).sum())
            negative = float((bad_n * bad_ratio_n.clamp(min=low)).sum())
            return positive < self.target * (positive + negative)

        lows = _stairs(self.low_start, self.low_end, self.low_step)
        highs = _stairs(self.high_start, self.high_end, self.high_step)
        high = next((high for high in highs if not short(lows[0], high)), highs[-1])
        low = next((low for low in lows if not short(low, high)), lows[-1])
        return low, high

    def idle(self, run: RunFacts) -> list[str]:
        """Say that nothing is clipped if the ratio is always 1."""
        return idle_ratio(run, "old", "the balanced clip")


def _stairs(start: float, end: float, step: float) -> list[float]:
    """Return bounds from `start` in steps of `step`, none beyond `end`."""
    return [start + step * i for i in range(int((end - start) / step + 1e-9) + 1)]


@part("objective")
class EntropyClip(Surrogate):
    """Clip bounds and advantages that follow a token's entropy (HAPO, arXiv:2509.16591).

    ĥ in [-1, 1] is log H around its 0.8-quantile over the step's tokens, each side scaled to its extreme.
    `adapt`: a certain token (ĥ ≤ 0) gets low·(1-ĥ), an uncertain one high·(1+ĥ). `redistribute`: A becomes A·(1+ĥ) for
    uncertain tokens whose ratio has left (1 - low/2, 1 + high/2), and for certain ones inside it. `released`: the
    authors' code divides the negative side by its signed minimum, so that ĥ is never negative.
    """

    clip_low: LowBound = 0.2
    clip_high: Bound = 0.2
    pivot: Annotated[float, Field(ge=0, le=1)] = 0.8
    adapt: bool = True
    redistribute: bool = True
    released: bool = False
    dual_clip: Dual = 10.0
    couples: ClassVar[str] = "batch"
    reads = ("old_bt", "entropy_bt")

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -min(ρA', clip(ρ, 1-clip_low(ĥ), 1+clip_high(ĥ))A')."""
        adv_bt, h_bt = batch.need("advantage_bt", self.name), self.score(batch)
        ratio_bt = log_ratio(logp_bt, batch).exp()
        sure_bt, gain = h_bt <= 0, float(self.adapt)
        low_bt = self.clip_low * torch.where(sure_bt, 1 - gain * h_bt, 1)
        high_bt = self.clip_high * torch.where(sure_bt, 1, 1 + gain * h_bt)
        if self.redistribute:
            ratio_now_bt = ratio_bt.detach()
            inside_bt = (ratio_now_bt > 1 - low_bt / 2) & (ratio_now_bt < 1 + high_bt / 2)
            adv_bt = torch.where(inside_bt == sure_bt, adv_bt * (1 + h_bt), adv_bt)
        return clipped(ratio_bt, adv_bt, 1 - low_bt, 1 + high_bt, self.dual_clip)

    @override
    def code(self) -> str:
        gain = "h_bt" if self.adapt else "0 * h_bt"
        lines = [
            "h_bt = torch.zeros_like(adv_bt)",
            "h_n = old_entropy_bt[active_bt]",
            f"h_bt[active_bt] = score(h_n, extent(h_n, {self.pivot!r}), released={self.released})",
            *ratio_code("token", "old"),
            f"low_bt = 1 - {self.clip_low!r} * torch.where(h_bt <= 0, 1 - {gain}, 1)",
            f"high_bt = 1 + {self.clip_high!r} * torch.where(h_bt <= 0, 1, 1 + {gain})",
        ]
        if not self.redistribute:
            return "\n".join([*lines, *clip_lines("low_bt", "high_bt", self.dual_clip)])
        inside = "inside_bt = (ratio_bt.detach() > (1 + low_bt) / 2) & (ratio_bt.detach() < (1 + high_bt) / 2)"
        own = "own_bt = torch.where(inside_bt == (h_bt <= 0), adv_bt * (1 + h_bt), adv_bt)"
        return "\n".join([*lines, inside, own, *clip_lines("low_bt", "high_bt", self.dual_clip, adv="own_bt")])

    def score(self, batch: Batch) -> Tensor:
        """Return [B,T] ĥ of each active token, zero elsewhere."""
        active_bt = batch.active_bt
        entropy_n = batch.need("entropy_bt", self.name)[active_bt]
        out_bt = torch.zeros(batch.size, dtype=batch.dtype, device=active_bt.device)
        if len(entropy_n):
            out_bt[active_bt] = score(entropy_n, extent(entropy_n, self.pivot), released=self.released).to(out_bt)
        return out_bt

    @override
    def words(self) -> str:
        adapt = "more room down for certain tokens and up for uncertain ones" if self.adapt else "fixed bounds"
        moved = "; advantages grow for uncertain tokens on the move and shrink for certain ones at rest"
        band = f"[{1 - self.clip_low:g}, {1 + self.clip_high:g}]"
        return f"PPO clip around {band}, {adapt}{moved if self.redistribute else ''}"

    @override
    def formula(self) -> str:
        low = f"{self.clip_low:g}·(1 - min(ĥ, 0))" if self.adapt else f"{self.clip_low:g}"
        high = f"{self.clip_high:g}·(1 + max(ĥ, 0))" if self.adapt else f"{self.clip_high:g}"
        adv = "A·(1 + ĥ·[ĥ > 0 and ρ moved, or ĥ ≤ 0 and ρ at rest])" if self.redistribute else "A"
        return f"-min(ρ·A', clip(ρ, 1 - {low}, 1 + {high})·A'),  A' = {adv}"
