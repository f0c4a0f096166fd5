"""Bounded advantages (PPO-max)."""

from __future__ import annotations

from torch import Tensor

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch
from grouprl.core.numbers import Positive


@part("advantage_transform")
class ClipAdvantage(AdvantageTransform):
    """Clip advantages to ±`limit` (PPO-max's optional advantage clip, arXiv:2307.04964)."""

    limit: Positive = 0.5
    says = "clip advantages to ±{limit:g}"
    equation = "A ← clip(A, ±{limit:g})"

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return clip(A, -limit, limit)."""
        return adv_bt.clamp(-self.limit, self.limit)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return f"adv_bt = adv_bt.clamp({-self.limit!r}, {self.limit!r})"
