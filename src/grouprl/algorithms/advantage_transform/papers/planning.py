"""Credit for planning: a larger step on the tokens of strategic phrases."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch

PHRASES = (
    *("wait", "let me check", "let me verify", "alternatively", "another way", "on the other hand"),
    *("first", "next", "then", "finally", "therefore", "this means that", "we need to find", "suppose that"),
)
"""Phrases of deduction, branching and going back."""


@part("advantage_transform")
class PlanningBoost(AdvantageTransform):
    """Move advantages of planning tokens (`marks.plan`) up by α|A| (HICRA, arXiv:2509.03646).

    `rule="paper"`: A + α|A| on planning tokens, so that good completions gain and bad ones lose less there.
    `rule="verl"`: A(1 + α·sign A) on tokens that plan or whose entropy is above the (1 - `share`)-quantile of their
    completion, and only in completions with A > 0 that are longer than the mean of their group. `phrases` are what a
    run marks in the texts.
    """

    alpha: Annotated[float, Field(ge=0)] = 0.2
    rule: Literal["paper", "verl"] = "paper"
    share: Annotated[float, Field(gt=0, le=1)] = 0.3
    phrases: Annotated[tuple[str, ...], Field(min_length=1)] = PHRASES

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return A + α|A| on the tokens the rule picks."""
        plan_bt = batch.need("marks.plan", self.name)
        if self.rule == "verl":
            plan_bt = (plan_bt | self._uncertain(batch)) & self._long(batch) & (adv_bt > 0)
        return torch.where(plan_bt, adv_bt + self.alpha * adv_bt.abs(), adv_bt)

    @override
    def code(self) -> str:
        raised = f"adv_bt = torch.where(plan_bt, adv_bt + {self.alpha!r} * adv_bt.abs(), adv_bt)"
        if self.rule == "paper":
            return f'plan_bt = marks["plan"]\n{raised}'
        return (
            "h_bt = torch.where(active_bt, old_entropy_bt, torch.nan)\n"
            f"unsure_bt = h_bt > torch.nanquantile(h_bt, {1 - self.share!r}, dim=1, keepdim=True)\n"
            "length_b = mask_bt.sum(1).to(adv_bt.dtype)\n"
            "long_b = length_b > mean(length_b, same_bb)\n"
            'plan_bt = (marks["plan"] | unsure_bt) & long_b[:, None] & (adv_bt > 0)\n'
            f"{raised}"
        )

    def _uncertain(self, batch: Batch) -> Tensor:
        """Return [B,T] bool: tokens whose entropy is above the quantile of their completion."""
        entropy_bt = torch.where(batch.active_bt, batch.need("entropy_bt", self.name), torch.nan)
        return entropy_bt > torch.nanquantile(entropy_bt, 1 - self.share, dim=1, keepdim=True)

    def _long(self, batch: Batch) -> Tensor:
        """Return [B,1] bool: completions longer than the mean of their group."""
        length_b = batch.length_b.to(batch.dtype)
        return (length_b > levels.mean(length_b, batch.group_b, batch.stats_b.to(batch.dtype)))[:, None]

    @override
    def needs(self) -> tuple[str, ...]:
        return ("marks.plan",) if self.rule == "paper" else ("marks.plan", "entropy_bt")

    @override
    def words(self) -> str:
        if self.rule == "paper":
            return f"add {self.alpha:g}·|A| to the advantage of tokens inside {len(self.phrases)} planning phrases"
        return (
            f"scale up by {1 + self.alpha:g} the planning tokens and the {self.share:.0%} most uncertain ones of good "
            "completions that are longer than their group's mean"
        )

    @override
    def formula(self) -> str:
        where = "t plans" if self.rule == "paper" else "A > 0, |y| > mean_g |y| and t plans or H_t is high"
        return f"A ← A + {self.alpha:g}·|A| if {where}"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if `alpha` is 0 or no completion can contain one of the phrases."""
        if self.alpha == 0:
            return ["planning_boost has no effect: alpha is 0"]
        if not run.alphabet or any(set(phrase) <= set(run.alphabet) for phrase in self.phrases):
            return []
        rest = " but for the most uncertain tokens" if self.rule == "verl" else ""
        return [
            f"planning_boost has no effect{rest}: none of its phrases ({', '.join(self.phrases[:3])} …) can occur, the "
            f"task is written in {run.alphabet!r}. Set phrases to signs of planning in its completions"
        ]
