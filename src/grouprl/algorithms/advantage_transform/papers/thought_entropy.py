"""A bonus on uncertain tokens of the thought (FunRL)."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("advantage_transform")
class ThoughtEntropy(AdvantageTransform):
    """Add a bonus to uncertain tokens of the thought, never so large that an advantage changes its sign (FunRL).

    A + min(α·H_t, |A|/κ) on `marks.thought`, the tokens up to the sign that ends a thought; H_t without gradient. What
    follows the thought, the call or completion, stays as it is (arXiv:2508.05118).
    """

    alpha: Annotated[float, Field(ge=0)] = 0.4
    kappa: Annotated[float, Field(gt=1)] = 2.0
    says = "add {alpha:g} times the entropy, at most a {kappa:g}th of its size, to the advantage of a thought's tokens"
    equation = "A_t ← A_t + min({alpha:g}·H_t, |A_t|/{kappa:g}) in the thought"
    reads = ("entropy_bt", "marks.thought")
    plain = (
        "bonus_bt = torch.minimum({alpha!r} * old_entropy_bt, adv_bt.abs() / {kappa!r})\n"
        'adv_bt = torch.where(active_bt & marks["thought"], adv_bt + bonus_bt, adv_bt)'
    )
    idle_at = ("alpha", 0, "thought_entropy has no effect: alpha is 0")

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return A + min(α·H, |A|/κ)."""
        thought_bt = batch.active_bt & batch.need("marks.thought", self.name)
        bonus_bt = torch.minimum(self.alpha * batch.need("entropy_bt", self.name), adv_bt.abs() / self.kappa)
        return torch.where(thought_bt, adv_bt + bonus_bt, adv_bt)
