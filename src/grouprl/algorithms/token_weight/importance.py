"""The ratio of the old policy to the sampler as a weight of the loss, truncated or masked."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.token_weight.token_weight import MismatchLevel, TokenWeight, mismatch_code, mismatch_ratio
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError

_LEVEL = {"token": "per token", "sequence": "geometric mean per completion", "sequence_sum": "product per completion"}


@part("token_weight")
class TruncatedImportance(TokenWeight):
    """TIS: multiply the policy loss by min(π_old/π_behavior, high), detached (Yao et al. 2025; C = 2, Qwen 5).

    `low` also bounds it from below (OpenRLHF).
    """

    high: Annotated[float, Field(gt=0)] = 2.0
    low: Annotated[float, Field(ge=0)] | None = None
    level: MismatchLevel = "token"
    equation = "× min(π_old/π_behavior, {high:g})"
    reads = ("old_bt", "behavior_bt")

    def __call__(self, batch: Batch) -> Tensor:
        """Return clip(w, low, high)."""
        return mismatch_ratio(batch, self.level).clamp(self.low, self.high)

    def code(self) -> str:
        """Return the part as lines of plain torch; '' without an upper bound."""
        if self.high == math.inf:
            return ""
        return f"{mismatch_code(self.level)}\nfactor_bt = factor_bt * sampler_bt.clamp({self.low!r}, {self.high!r})"

    @override
    def words(self) -> str:
        low = "" if self.low is None else f" and at least {self.low:g}"
        return f"weigh by the trainer/sampler ratio ({_LEVEL[self.level]}), at most {self.high:g}{low}"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if the sampler is exact."""
        return ["truncated_importance has no effect: the sampler is exact"] if run.exact_sampler else []


@part("token_weight")
class GeometricImportance(TruncatedImportance):
    """Weigh a completion by the geometric mean of its tokens' truncated π_old/π_behavior, detached (verl's gmpo)."""

    level: Literal["token"] = "token"
    equation = "× exp(mean_t log min(π_old/π_behavior, {high:g}))"

    def __call__(self, batch: Batch) -> Tensor:
        """Return exp(mean_t log clip(w_t, low, high)), the same on all tokens of a completion."""
        log_bt = torch.where(batch.active_bt, super().__call__(batch).log(), 0)
        mean_b = log_bt.sum(1) / batch.active_bt.sum(1).clamp(min=1)
        return mean_b.exp()[:, None].expand_as(log_bt)

    @override
    def code(self) -> str:
        return ""

    @override
    def words(self) -> str:
        return f"{super().words()}; a completion takes the geometric mean of its tokens' weights"


@part("token_weight")
class MaskedImportance(TokenWeight):
    """MIS: multiply by π_old/π_behavior where it lies in [low, high], by zero elsewhere (IcePop: 0.5 to 5 per token).

    Denominators keep counting the masked tokens.
    """

    low: Annotated[float, Field(ge=0)] = 0.5
    high: Annotated[float, Field(gt=0)] = 5.0
    level: MismatchLevel = "token"
    equation = "× w·[{low:g} ≤ w ≤ {high:g}],  w = π_old/π_behavior"
    reads = ("old_bt", "behavior_bt")

    def __post_init__(self) -> None:
        """Refuse an empty interval."""
        if self.low > self.high:
            raise InputError(
                f"masked_importance: low {self.low:g} > high {self.high:g}", "the interval must not be empty"
            )

    def __call__(self, batch: Batch) -> Tensor:
        """Return w·[low ≤ w ≤ high]."""
        ratio_bt = mismatch_ratio(batch, self.level)
        return torch.where((ratio_bt >= self.low) & (ratio_bt <= self.high), ratio_bt, 0)

    def code(self) -> str:
        """Return the part as lines of plain torch; '' without an upper bound."""
        if self.high == math.inf:
            return ""
        inside = f"(sampler_bt >= {self.low!r}) & (sampler_bt <= {self.high!r})"
        return f"{mismatch_code(self.level)}\nfactor_bt = factor_bt * torch.where({inside}, sampler_bt, 0)"

    @override
    def words(self) -> str:
        return (
            f"weigh by the trainer/sampler ratio ({_LEVEL[self.level]}) inside [{self.low:g}, {self.high:g}], "
            "by zero outside"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if the sampler is exact."""
        return ["masked_importance has no effect: the sampler is exact"] if run.exact_sampler else []
