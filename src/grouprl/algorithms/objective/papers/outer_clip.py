"""PPO's clip after a first, wide bound of the ratio (StableReinforce, arXiv:2505.02835)."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Clipped
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("objective")
class PreClipped(Clipped):
    """PPO's clipped surrogate of a ratio clamped to [1/bound, bound] before it is exponentiated; no gradient beyond."""

    bound: Annotated[float, Field(gt=1)] = 1000.0

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return the clipped loss with log ρ clamped to ±log bound."""
        anchor_bt, limit = batch.need(f"{self.against}_bt", self.name), math.log(self.bound)
        return super().__call__(anchor_bt + (logp_bt - anchor_bt).clamp(-limit, limit), batch)

    @override
    def words(self) -> str:
        return f"{super().words()}; the ratio is first held in [{1 / self.bound:g}, {self.bound:g}]"

    @override
    def formula(self) -> str:
        return f"{super().formula()},  log ρ held in ±log {self.bound:g}"
