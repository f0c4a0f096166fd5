"""An advantage for the gap between a token budget's mean reward and its ideal one (HBPO)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.papers.budget_cosine import Longest, _longest, _needs, budgets, ideal
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


@part("advantage_transform")
class BudgetGap(AdvantageTransform):
    """Add the gap between a budget's mean reward and its ideal score: w·(mean of R over the rows of that budget - f(b))
    (HBPO).

    f(b) = β cos(π b/(2 Lmax)), the reward of a correct completion within the budget, so the term is at most 0 under
    `budget_cosine`. It is the same for all rows of a prompt with the same budget; rows without one get nothing.
    """

    weight: NonNegative = 1.0
    beta: Annotated[float, Field(gt=0)] = 4.0
    length: Longest = None
    says = "add {weight:g} times how far the completions of a budget fall short of that budget's ideal score"
    equation = "A ← A + {weight:g}·(mean_{{g,b}} R - {beta:g}·cos(π·b/(2 Lmax)))"
    idle_at = ("weight", 0, "budget_gap has no effect: its weight is 0")

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return A + w·(mean_{g,b} R - f(b))."""
        longest, budget_b = _longest(self.length, batch, self.name), budgets(batch, self.name)
        id_b = levels.cross(batch.group_b, batch.need("keys.budget", self.name))
        counted_b = batch.stats_b.to(batch.dtype)
        gap_b = levels.mean(batch.total_reward_b, id_b, counted_b) - ideal(budget_b, self.beta, longest)
        return adv_bt + self.weight * (gap_b * counted_b * (budget_b > 0))[:, None]

    @override
    def code(self) -> str:
        return (
            'budget_b = keys["budget"].clamp(min=0).to(reward_b.dtype)\n'
            'budget_bb = same_bb & (keys["budget"][:, None] == keys["budget"])\n'
            f"gap_b = mean(reward_b, budget_bb) - ideal(budget_b, {self.beta!r}, {self.length or 'max_length'})\n"
            f"adv_bt = adv_bt + {self.weight!r} * (gap_b * counts_b * (budget_b > 0))[:, None]"
        )

    @override
    def needs(self) -> tuple[str, ...]:
        return _needs(self.length)
