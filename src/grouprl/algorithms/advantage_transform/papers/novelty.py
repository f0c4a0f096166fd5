"""Novelty: correct completions that the policy found unlikely count more."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.objective.ratio import LOG_LIMIT
from grouprl.algorithms.outcome import right
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("advantage_transform")
class NoveltyBonus(AdvantageTransform):
    """XRPO's sharpening of correct completions with A > 0 (arXiv:2510.06672): A + min(λ·max(1 - η, 0), κ·A).

    η = exp(s - mean_g s), with s the mean log-prob of the completion's tokens at the start of the update: below 1 for
    a completion less likely than its group's.
    """

    coef: Annotated[float, Field(ge=0)] = 2.5
    cap: Annotated[float, Field(ge=0)] = 0.5
    says = (
        "raise the advantage of correct completions that are less likely than their group's by up to {cap:.0%} "
        "(rate {coef:g})"
    )
    equation = (
        "A ← A + min({coef:g}·max(1 - η, 0), {cap:g}·A) if right and A > 0,  η = exp(s - mean_g s),  s "
        "= mean_t log π_old"
    )
    reads = ("old_bt",)
    plain = (
        "score_b = torch.where(mask_bt, old_bt, 0).sum(1) / mask_bt.sum(1).clamp(min=1)\n"
        "novelty_b = (score_b - mean(score_b, same_bb & mask_bt.any(1))).clamp(-20, 20).exp()\n"
        "bonus_b = {coef!r} * (1 - novelty_b).clamp(min=0)\n"
        "sharper_bt = adv_bt + torch.minimum(bonus_b[:, None], {cap!r} * adv_bt)\n"
        "adv_bt = torch.where(correct_b[:, None] & (adv_bt > 0), sharper_bt, adv_bt)"
    )

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return A + min(λ·max(1 - η, 0), κ·A) where right and A > 0."""
        bonus_b = self.coef * (1 - novelty(batch, self.name)).clamp(min=0)
        sharper_bt = adv_bt + torch.minimum(bonus_b[:, None].expand_as(adv_bt), self.cap * adv_bt)
        return torch.where(right(batch)[:, None] & (adv_bt > 0), sharper_bt, adv_bt)

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if its rate or its cap is 0."""
        zero = [name for name in ("coef", "cap") if getattr(self, name) == 0]
        return [f"novelty_bonus has no effect: its {zero[0]} is 0"] if zero else []


def novelty(batch: Batch, reader: str) -> Tensor:
    """Return [B] η = exp(s - mean_g s): likelihood per token compared with the group's (geometric means)."""
    logp_bt = torch.where(batch.mask_bt, batch.need("old_bt", reader), 0)
    score_b = logp_bt.sum(1) / batch.length_b.clamp(min=1)
    counted_b = (batch.stats_b & (batch.length_b > 0)).to(batch.dtype)
    return (score_b - levels.mean(score_b, batch.group_b, counted_b)).clamp(-LOG_LIMIT, LOG_LIMIT).exp()
