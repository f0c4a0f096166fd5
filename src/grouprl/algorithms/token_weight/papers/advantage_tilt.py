"""Completions of other policies weighted by the exponential of their advantage (RED-Weight)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from grouprl.algorithms.objective.ratio import LOG_LIMIT
from grouprl.algorithms.part import part
from grouprl.algorithms.token_weight.token_weight import TokenWeight
from grouprl.core.batch import Batch


@part("token_weight")
class AdvantageTilt(TokenWeight):
    """exp(A/τ): good completions weigh more, bad ones less (RED-Weight, arXiv:2509.24203); exponent within ±20."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    says = "weigh every token by exp(advantage / {temperature:g})"
    equation = "× exp(A/{temperature:g})"
    plain = "factor_bt = factor_bt * (adv_bt / {temperature!r}).clamp(-20, 20).exp()"

    def __call__(self, batch: Batch) -> Tensor:
        """Return exp(A_t/τ)."""
        return (batch.need("advantage_bt", self.name) / self.temperature).clamp(-LOG_LIMIT, LOG_LIMIT).exp()
