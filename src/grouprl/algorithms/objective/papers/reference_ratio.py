"""Offline policy gradients, weighted by how far the policy has left the reference that the data stand for (A-LoL)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.objective.ratio import held
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.numbers import PositiveShare

RATIO = {
    "sequence": "ρ = π(y)/π_ref(y)",
    "token": "ρ_t = π(y_t)/π_ref(y_t)",
}


@part("objective")
class ReferenceRatio(Objective):
    """-A·sg[clip(ρ, 1-clip, 1+clip)]·log π, ρ the ratio to the frozen reference (A-LoL, arXiv:2305.14718).

    `ratio` "sequence": of the whole completion; "token": of each token (A-LoL seq.); "none": 1 (A-LoL ref. free). The
    ratio is a weight without gradient, and its clip acts on both sides, whatever the sign of A.
    """

    ratio: Literal["sequence", "token", "none"] = "sequence"
    clip: PositiveShare = 0.9

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -A_t·w_t·log π(y_t)."""
        adv_bt = batch.need("advantage_bt", self.name)
        if self.ratio == "none":
            return TokenLoss(-adv_bt * logp_bt, {})
        log_bt = torch.where(batch.active_bt, logp_bt.detach() - batch.need("ref_bt", self.name), 0)
        if self.ratio == "sequence":
            log_bt = log_bt.sum(1, keepdim=True).expand_as(log_bt)
        ratio_bt = held(log_bt).exp()
        weight_bt = ratio_bt.clamp(1 - self.clip, 1 + self.clip)
        capped_bt = ((weight_bt != ratio_bt) & (adv_bt != 0)).to(adv_bt.dtype)
        return TokenLoss(-adv_bt * weight_bt * logp_bt, {"capped_fraction": capped_bt})

    @override
    def needs(self) -> tuple[str, ...]:
        return () if self.ratio == "none" else ("ref_bt",)

    @override
    def words(self) -> str:
        if self.ratio == "none":
            return "push each token's log-prob by its advantage, without a ratio"
        what = "completion's" if self.ratio == "sequence" else "token's"
        limits = f"[{1 - self.clip:.4g}, {1 + self.clip:.4g}]"
        return f"push each token's log-prob by its advantage times the {what} ratio to the reference, held in {limits}"

    @override
    def formula(self) -> str:
        if self.ratio == "none":
            return "-A_t·log π(y_t)"
        limits = f"{1 - self.clip:.4g}, {1 + self.clip:.4g}"
        return f"-A_t·sg[clip(ρ, {limits})]·log π(y_t),  {RATIO[self.ratio]}"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without a reference model."""
        if self.ratio == "none" or run.has_reference:
            return []
        return [f"{self.name} compares with a reference model. Set model.reference: initial, or ratio: none"]

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        if self.ratio == "none":
            return "loss_bt = -adv_bt * logp_bt"
        whole = ["log_bt = log_bt.sum(1, keepdim=True).expand_as(log_bt)"] if self.ratio == "sequence" else []
        return "\n".join(
            [
                "log_bt = torch.where(active_bt, logp_bt.detach() - ref_bt, 0)",
                *whole,
                f"ratio_bt = held(log_bt).exp().clamp({1 - self.clip!r}, {1 + self.clip!r})",
                "loss_bt = -adv_bt * ratio_bt * logp_bt",
            ]
        )
