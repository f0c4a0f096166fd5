"""Advantages changed completion by completion: by the difficulty of the prompt, by length, or dropped as outliers."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.outcome import counted_right, right, right_share
from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.papers.length_reward import lengths
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("advantage_transform")
class DifficultyWeight(AdvantageTransform):
    """Amplify correct completions to hard prompts and wrong completions to easy ones (GRPO-LEAD, arXiv:2504.09696).

    A·w(ρ) where A > 0 and A·w(1-ρ) elsewhere, ρ the group's share of correct completions; w falls from `high` to `low`
    with a logistic step of slope `slope` at `middle`.
    """

    low: Annotated[float, Field(ge=0)] = 0.4
    high: Annotated[float, Field(gt=0)] = 1.5
    middle: float = 0.75
    slope: Annotated[float, Field(gt=0)] = 10.0
    says = (
        "weigh correct completions by up to {high:g} where few are right and down to {low:g} where most are; "
        "wrong completions the other way round"
    )
    plain = (
        "share_b = mean(correct_b.to(adv_bt.dtype), same_bb)\n"
        "raise_b = {low!r} + ({high!r} - {low!r}) * torch.sigmoid(-{slope!r} * (share_b - {middle!r}))\n"
        "lower_b = {low!r} + ({high!r} - {low!r}) * torch.sigmoid(-{slope!r} * (1 - share_b - {middle!r}))\n"
        "adv_bt = adv_bt * torch.where(adv_bt > 0, raise_b[:, None], lower_b[:, None])"
    )

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return A·w(ρ) or A·w(1-ρ)."""
        share_b = right_share(batch)
        positive_b, negative_b = self.weight(share_b)[:, None], self.weight(1 - share_b)[:, None]
        return adv_bt * torch.where(adv_bt > 0, positive_b, negative_b)

    def weight(self, share_b: Tensor) -> Tensor:
        """Return w(x) = low + (high - low) / (1 + exp(slope·(x - middle)))."""
        return self.low + (self.high - self.low) * torch.sigmoid(-self.slope * (share_b - self.middle))

    @override
    def formula(self) -> str:
        step = f"{self.low:g} + {self.high - self.low:g}/(1 + exp({self.slope:g}(x - {self.middle:g})))"
        return f"A ← A·w(ρ) if A > 0 else A·w(1-ρ),  w(x) = {step}"


@part("advantage_transform")
class LongWrong(AdvantageTransform):
    """Push wrong completions down more the longer they are than the group's right ones (View-R1, arXiv:2506.21655).

    A·(1 + (1 - base^-Δ)) with Δ = |y| - mean length of the correct completions, where Δ > 0; at most twice.
    """

    base: Annotated[float, Field(gt=1)] = 1.00001
    says = (
        "scale up the advantage of wrong completions that are longer than the right ones (base {base:g} per "
        "token, at most twice)"
    )
    equation = "A ← A·(2 - {base:g}^(-Δ)) if wrong and Δ > 0,  Δ = |y| - mean_right |y|"
    plain = (
        "length_b, right_bb = mask_bt.sum(1).to(adv_bt.dtype), same_bb & correct_b\n"
        "excess_b = (length_b - mean(length_b, right_bb)).clamp(min=0)\n"
        "factor_b = torch.where(right_bb.any(1) & ~correct_b, 2 - {base!r} ** -excess_b, 1)\n"
        "adv_bt = adv_bt * factor_b[:, None]"
    )

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return A·(2 - base^-Δ) on wrong completions with Δ > 0."""
        length_b, right_b = lengths(batch), counted_right(batch)
        any_right_b = levels.count(batch.group_b, right_b, batch.dtype) > 0
        excess_b = (length_b - levels.mean(length_b, batch.group_b, right_b)).clamp(min=0)
        factor_b = 2 - torch.exp(-excess_b * torch.log(torch.tensor(self.base, dtype=torch.float64)).to(batch.dtype))
        return adv_bt * torch.where(any_right_b & ~right(batch), factor_b, 1)[:, None]


@part("advantage_transform")
class DropOutliers(AdvantageTransform):
    """Set advantages beyond ±`sigma` to zero; after whitening that is a filter in standard deviations."""

    sigma: Annotated[float, Field(gt=0)] = 3.0
    says = "ignore tokens whose advantage lies beyond ±{sigma:g}"
    equation = "A ← A·[|A| ≤ {sigma:g}]"
    plain = "adv_bt = torch.where(adv_bt.abs() <= {sigma!r}, adv_bt, 0)"

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return A·[|A| ≤ sigma]."""
        return torch.where(adv_bt.abs() <= self.sigma, adv_bt, 0)
