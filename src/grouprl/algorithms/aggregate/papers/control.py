"""Aggregation that treats the first token of a completion, which chooses how to answer, apart from the rest."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from grouprl.algorithms.aggregate.aggregate import Aggregate
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("aggregate")
class ControlToken(Aggregate):
    """α·mean over completions of their first token + mean over all later tokens (DeGRPO, Thinkless, arXiv:2505.13379).

    The first token's weight does not depend on how long the completions are.
    """

    coef: Annotated[float, Field(ge=0)] = 1e-3
    says = "{coef:g} times the mean over first tokens, plus the mean over all other tokens"
    equation = "{coef:g}/B · Σ_i [t=1] + 1/Σ(|y_i|-1) · Σ_i Σ_{{t>1}}"
    plain = (
        "number_bt = mask_bt.cumsum(1)\n"
        "first_bt = (active_bt & (number_bt == 1)).to(adv_bt.dtype)\n"
        "later_bt = (active_bt & (number_bt > 1)).to(adv_bt.dtype)\n"
        "weight_bt = {coef!r} * first_bt / first_bt.sum().clamp(min=1) + later_bt / later_bt.sum().clamp(min=1)"
    )

    def __call__(self, batch: Batch) -> Tensor:
        """Return w_first = α/B, w_later = 1/Σ(|y|-1)."""
        position_bt = torch.where(batch.mask_bt, batch.mask_bt.cumsum(1), 0)
        first_bt = (batch.active_bt & (position_bt == 1)).to(batch.dtype)
        later_bt = (batch.active_bt & (position_bt > 1)).to(batch.dtype)
        return self.coef * first_bt / first_bt.sum().clamp(min=1) + later_bt / later_bt.sum().clamp(min=1)
