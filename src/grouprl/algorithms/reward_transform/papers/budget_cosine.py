"""Budgets of tokens: rewards and advantages that depend on the length each completion was told to have.

`keys.budget` is the budget of each row in tokens; 0 or less means that the row has none.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.outcome import right
from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.papers.length_reward import lengths
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative

Longest = Annotated[int, Field(ge=1)] | None


def budgets(batch: Batch, reader: str) -> Tensor:
    """Return [B] budget of each row in tokens, 0 if it has none."""
    return batch.need("keys.budget", reader).clamp(min=0).to(batch.dtype)


def ideal(length_b: Tensor, beta: float, longest: int) -> Tensor:
    """Return [B] score of a correct completion of that many tokens: β·cos(π n/(2 Lmax)), constant beyond Lmax."""
    return beta * torch.cos(math.pi * length_b.clamp(max=longest) / (2 * longest))


def _longest(length: int | None, batch: Batch, reader: str) -> int:
    return length or int(batch.need("max_length", reader))


def _needs(length: int | None) -> tuple[str, ...]:
    return ("keys.budget",) if length else ("keys.budget", "max_length")


@part("reward_transform")
class BudgetCosine(RewardTransform):
    """HBPO's reward of correct completions: flat up to the budget, falling beyond it (arXiv:2507.15844).

    With n tokens, budget b and Lmax: R·β cos(π b/(2 Lmax)) where n ≤ b, R·(β cos(π n/(2 Lmax)) - α(n - b)) where n > b,
    0 where n > Lmax. `alpha` None is 1/Lmax. A row without budget gets R·β cos(π n/(2 Lmax)). Wrong completions get 0,
    or their reward where it is negative. `floor` is the least factor of R; None: a correct completion far beyond its
    budget may get less than a wrong one. `below="min"` does as the authors' code: the smaller of both formulas
    everywhere.
    """

    beta: Annotated[float, Field(gt=0)] = 4.0
    alpha: NonNegative | None = None
    length: Longest = None
    below: Literal["flat", "min"] = "flat"
    floor: float | None = None

    def __call__(self, batch: Batch) -> Batch:
        """Return R·f(n, b) if right and n ≤ Lmax, else min(R, 0)."""
        longest, length_b = _longest(self.length, batch, self.name), lengths(batch)
        budget_b = budgets(batch, self.name)
        factor_b = torch.where(
            budget_b > 0, self.factor(length_b, budget_b, longest), ideal(length_b, self.beta, longest)
        )
        if self.floor is not None:
            factor_b = factor_b.clamp(min=self.floor)
        paid_b = torch.where(length_b <= longest, batch.reward_b * factor_b, 0)
        return batch.replace(reward_b=torch.where(right(batch), paid_b, batch.reward_b.clamp(max=0)))

    @override
    def code(self) -> str:
        alpha = "1 / longest" if self.alpha is None else repr(self.alpha)
        lines = [
            f"longest, length_b = {self.length or 'max_length'}, mask_bt.sum(1).to(reward_b.dtype)",
            'budget_b = keys["budget"].clamp(min=0).to(reward_b.dtype)',
            f"free_b, flat_b = ideal(length_b, {self.beta!r}, longest), ideal(budget_b, {self.beta!r}, longest)",
            f"graded_b = free_b - {alpha} * (length_b - budget_b).abs()",
        ]
        bound = "torch.minimum(graded_b, flat_b)"
        if self.below == "flat":
            bound = "torch.where(length_b > budget_b, graded_b, flat_b)"
        floor = "" if self.floor is None else f".clamp(min={self.floor!r})"
        return "\n".join(
            [
                *lines,
                f"factor_b = torch.where(budget_b > 0, {bound}, free_b){floor}",
                "paid_b = torch.where(length_b <= longest, reward_b * factor_b, 0)",
                "reward_b = torch.where(correct_b, paid_b, reward_b.clamp(max=0))",
            ]
        )

    def factor(self, length_b: Tensor, budget_b: Tensor, longest: int) -> Tensor:
        """Return [B] f(n, b)."""
        alpha = 1 / longest if self.alpha is None else self.alpha
        graded_b = ideal(length_b, self.beta, longest) - alpha * (length_b - budget_b).abs()
        flat_b = ideal(budget_b, self.beta, longest)
        if self.below == "min":
            return torch.minimum(graded_b, flat_b)
        return torch.where(length_b > budget_b, graded_b, flat_b)

    @override
    def needs(self) -> tuple[str, ...]:
        return _needs(self.length)

    @override
    def words(self) -> str:
        floor = "" if self.floor is None else f", at least {self.floor:g}"
        return (
            f"correct completions earn what their budget is worth (up to {self.beta:g} for a small one) as long "
            "as they keep "
            f"to it, less and less beyond it{floor}; wrong ones nothing"
        )

    @override
    def formula(self) -> str:
        alpha = "1/Lmax" if self.alpha is None else f"{self.alpha:g}"
        cos = f"{self.beta:g}·cos(π·{{}}/(2 Lmax))"
        return f"R ← R·{cos.format('b')} if n ≤ b, R·({cos.format('n')} - {alpha}·(n - b)) if n > b"
