"""Credit for plans, and for the completions that carry them out."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import GroupAdvantage
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("advantage")
class PlanRelative(GroupAdvantage):
    """PTA-GRPO: a plan is worth the mean reward of its continuations (arXiv:2510.01833).

    `keys.plan` numbers the plans of a prompt. `credit="shared"`: R + w·value for the whole completion, judged in the
    group. `credit="span"`: the plan's tokens (`marks.plan`) get w times the plan's value judged among the plans of
    the prompt, each counted once; the other tokens get the completion's own reward judged in the group.
    """

    weight: Annotated[float, Field(ge=0)] = 1.0
    credit: Literal["shared", "span"] = "shared"
    eps: Annotated[float, Field(ge=0)] = 1e-6

    def __call__(self, batch: Batch) -> Tensor:
        """Return advantages [B,T] from the outcome and the plan's value, together or span by span."""
        reward_b, counted_b = batch.total_reward_b, batch.stats_b.to(batch.dtype)
        plan_b = levels.cross(batch.group_b, batch.need("keys.plan", self.name))
        value_b = levels.mean(reward_b, plan_b, counted_b)
        if self.credit == "shared":
            return batch.broadcast(self._normalised(reward_b + self.weight * value_b, batch, counted_b))
        once_b = counted_b / levels.count(plan_b, counted_b, batch.dtype).clamp(min=1)
        planned_b = self.weight * self._normalised(value_b, batch, once_b)
        outcome_b = self._normalised(reward_b, batch, counted_b)
        return torch.where(batch.need("marks.plan", self.name), batch.broadcast(planned_b), batch.broadcast(outcome_b))

    @override
    def code(self) -> str:
        plan = (
            'plan_bb = same_bb & (keys["plan"][:, None] == keys["plan"])\n'
            "value_b = mean(reward_b, plan_bb)  # what the plan is worth\n"
        )
        if self.credit == "shared":
            total = f"reward_b + {self.weight!r} * value_b"
            adv = f"adv_b = standardised({total}, same_bb, {self.eps!r}) * counts_b"
            return f"{plan}{adv}\nadv_bt = adv_b[:, None] * mask_bt"
        return (
            f"{plan}"
            "once_bb = same_bb.to(reward_b.dtype) / plan_bb.sum(1).clamp(min=1)  # each plan counts once\n"
            f"plan_b = {self.weight!r} * standardised(value_b, once_bb, {self.eps!r}) * counts_b\n"
            f"outcome_b = standardised(reward_b, same_bb, {self.eps!r}) * counts_b\n"
            'adv_bt = torch.where(marks["plan"], plan_b[:, None], outcome_b[:, None]) * mask_bt'
        )

    def _normalised(self, value_b: Tensor, batch: Batch, weight_b: Tensor) -> Tensor:
        return levels.relative(value_b, batch.group_b, eps=self.eps, weight_n=weight_b)

    @override
    def needs(self) -> tuple[str, ...]:
        return ("keys.plan",) if self.credit == "shared" else ("keys.plan", "marks.plan")

    @override
    def words(self) -> str:
        if self.credit == "shared":
            return (
                f"reward plus {self.weight:g} times the mean reward of the completions with the same plan, minus the "
                "group's mean, divided by its standard deviation"
            )
        return (
            f"tokens of the plan: {self.weight:g} times the plan's mean reward, relative to the prompt's "
            f"plans; the others: the completion's reward, relative to its group"
        )

    @override
    def formula(self) -> str:
        if self.credit == "shared":
            return f"A = norm_g(R + {self.weight:g}·mean_plan R)"
        return f"A_t = {self.weight:g}·norm_plans(mean_plan R) if t in the plan else norm_g(R)"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the plan's value has no effect if its weight is 0."""
        if self.weight > 0:
            return []
        return [
            "plan_relative is plain group-relative: its weight is 0"
            if self.credit == "shared"
            else "plan_relative gives the tokens of the plan no gradient: its weight is 0"
        ]
