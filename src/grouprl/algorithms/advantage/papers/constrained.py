"""Rewards against a limit of costs: an augmented Lagrangian on the advantages of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import GroupAdvantage
from grouprl.algorithms.data_part import DataPart, RunContext
from grouprl.algorithms.lines import compared
from grouprl.algorithms.part import part
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.levels import Scale
from grouprl.core.numbers import NonNegative

if TYPE_CHECKING:
    from grouprl.records.samples import ScoredSamples


def weight(multiplier: float, cost: float, limit: float, rate: float) -> float:
    """Return max(0, multiplier + rate·(cost - limit)): a step of the dual, or at another rate the augmented weight."""
    return max(0.0, multiplier + rate * (cost - limit))


@part("advantage")
class Lagrangian(GroupAdvantage, DataPart):
    """(A_r - λ'·A_c)/(1 + λ') with A_r and A_c of reward and cost, each relative to its group (CAL, ICLR 2024, eq. 7).

    λ' = max(0, λ + c·(C - d)), C the step's mean cost, d its `limit`, c `augmented`: the constraint weighs more where
    it is violated, and not at all far below its limit. After each step λ ← max(0, λ + `rate`·(C - d)). The cost is a
    component of the reward; rows without it count in neither mean, and their A_c is 0. *Differs from the paper*, which
    weighs a critic's upper bound of the cost in SAC: here it is the mean of what was sampled, and nothing is learnt
    off-policy. A group whose members all cost the same has A_c = 0, even if all violate the limit.
    """

    cost: str = "#cost"
    limit: float = 0.0
    multiplier: NonNegative = 0.6931
    rate: NonNegative = 0.05
    augmented: NonNegative = 10.0
    scale: Scale = "none"
    eps: Annotated[float, Field(ge=0)] = 1e-6
    async_safe = True
    says = (
        "reward relative to the group, less the cost {cost} times a multiplier that rises while the mean "
        "cost is above {limit:g} (by {rate:g} of the excess per step, {augmented:g} of it at once)"
    )
    equation = (
        "A = (A_r - λ'·A_c)/(1 + λ'),  λ' = max(0, λ + {augmented:g}·(C - {limit:g})),  "
        "λ ← max(0, λ + {rate:g}·(C - {limit:g}))"
    )
    reads = ("rewards.{cost}", "past.multiplier")
    fills = ("past.multiplier",)

    def __call__(self, batch: Batch) -> Tensor:
        """Return (A_r - λ'·A_c)/(1 + λ')."""
        weight_b = batch.need("past.multiplier", self.name)
        cost_b = batch.need(f"rewards.{self.cost}", self.name).to(batch.dtype)
        reward_b, dear_b = self._relative(batch, batch.total_reward_b), self._relative(batch, cost_b)
        return batch.broadcast((reward_b - weight_b * dear_b) / (1 + weight_b))

    def _relative(self, batch: Batch, value_b: Tensor) -> Tensor:
        counts_b = (batch.stats_b & value_b.isfinite()).to(batch.dtype)
        return levels.relative(
            value_b.nan_to_num(0.0), batch.group_b, scale=self.scale, eps=self.eps, alone="zero", weight_n=counts_b
        )

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `past.multiplier`, [B]: λ'."""
        now, cost = self.current(context), self._mean_cost(batch)
        found = now if cost is None else weight(now, cost, self.limit, self.augmented)
        context.note("multiplier", found, "mean")
        return batch.replace(past={**batch.past, "multiplier": torch.full_like(batch.reward_b, found)})

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Move λ by the mean cost of the rows trained on."""
        cost = None if prepared is None else self._mean_cost(prepared)
        if cost is not None:
            context.state_of(self)["multiplier"] = weight(self.current(context), cost, self.limit, self.rate)

    def current(self, context: RunContext) -> float:
        """Return λ of the current step."""
        return float(context.state_of(self).get("multiplier", self.multiplier))

    def _mean_cost(self, batch: Batch) -> float | None:
        cost_b = batch.need(f"rewards.{self.cost}", self.name)
        known_b = batch.stats_b & cost_b.isfinite()
        return float(cost_b[known_b].double().mean()) if known_b.any() else None

    @override
    def code(self) -> str:
        one = compared("value_b.nan_to_num(0.0)", "known_bb", self.scale, self.eps)
        return (
            "dual_b, adv_b = past['multiplier'], torch.zeros_like(reward_b)\n"
            f"both = (1 / (1 + dual_b), reward_b), (-dual_b / (1 + dual_b), rewards[{self.cost!r}])\n"
            "for share_b, value_b in both:\n"
            "    known_bb = same_bb & value_b.isfinite()\n"
            f"    adv_b = adv_b + share_b * ({one}) * (counts_b & value_b.isfinite())\n"
            "adv_bt = adv_b[:, None] * mask_bt"
        )
