"""A constant added to every advantage, so that good and bad rows count differently (AsymRE)."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("advantage_transform")
class Shift(AdvantageTransform):
    """Add a constant to every advantage: the baseline is lowered by it (AsymRE, arXiv:2506.20520, δ = -amount).

    An amount above 0 also imitates average completions, and good ones then count more than bad ones.
    """

    amount: float = 0.1
    says = "every advantage raised by {amount:g} (the baseline is lower by as much)"
    equation = "A ← A + {amount:g}"
    plain = "adv_bt = torch.where(active_bt & counts_b[:, None], adv_bt + {amount!r}, adv_bt)"

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return A + amount on rows that count in statistics."""
        return torch.where(batch.active_bt & batch.stats_b[:, None], adv_bt + self.amount, adv_bt)
