"""Rejection of tokens or completions whose probabilities differ too much between sampler and trainer.

With d = log π_old - log π_behavior: k1 = -d, k2 = d²/2, k3 = e^d - 1 - d, of a token, or their sum, mean or largest
over a completion (verl's rollout_rs).
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.filter.filter import Filter
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.token_weight.token_weight import mismatch_ratio
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError

Statistic = Literal["k1", "k2", "k3"]
Over = Literal["token", "sequence_sum", "sequence_mean", "sequence_max"]
_OVER = {
    "token": "tokens",
    "sequence_sum": "completions, by the sum over their tokens,",
    "sequence_mean": "completions, by the mean over their tokens,",
    "sequence_max": "completions, by their largest token,",
}


def divergence(log_bt: Tensor, statistic: Statistic) -> Tensor:
    """Return [B,T] k1, k2 or k3 of d = log π_old - log π_behavior ([B,T])."""
    if statistic == "k1":
        return -log_bt
    return log_bt.square() / 2 if statistic == "k2" else log_bt.expm1() - log_bt


@part("filter")
class MismatchRejection(Filter):
    """Take tokens or completions out of the loss and its denominators whose mismatch is outside [log low, log high].

    For k1 the bounds are ratios π_behavior/π_old, `low` None being 1/high; for k2 and k3 `high` bounds the divergence
    itself and there is no lower bound. Rewards of rejected completions still count in group statistics.
    """

    statistic: Statistic = "k1"
    over: Over = "sequence_mean"
    high: Annotated[float, Field(gt=0)] = 2.0
    low: Annotated[float, Field(gt=0)] | None = None
    reads = ("old_bt", "behavior_bt")

    def __post_init__(self) -> None:
        """Raise InputError for a lower bound of k2 or k3, the largest k1, or an empty interval."""
        if self.statistic != "k1" and self.low is not None:
            raise InputError(
                f"{self.name} has a lower bound with the statistic {self.statistic}",
                "only k1 has a lower bound",
                "Drop low",
            )
        if self.statistic == "k1" and self.over == "sequence_max":
            raise InputError(
                f"{self.name} takes the largest k1 of a completion",
                "k1 has a sign, so its largest value misses large negative ones",
                "Use k2 or k3",
            )
        if self.statistic == "k1" and self._low > self.high:
            raise InputError(f"{self.name}: low {self._low:g} > high {self.high:g}", "the interval must not be empty")

    @property
    def _low(self) -> float:
        return 1 / self.high if self.low is None else self.low

    def __call__(self, batch: Batch) -> Batch:
        """Shrink the loss mask."""
        active_bt = batch.active_bt
        value_bt = torch.where(active_bt, divergence(mismatch_ratio(batch, "token").log(), self.statistic), 0)
        if self.over == "sequence_max":
            value_bt = value_bt.amax(1, keepdim=True)
        elif self.over != "token":
            value_bt = value_bt.sum(1, keepdim=True)
            if self.over == "sequence_mean":
                value_bt = value_bt / active_bt.sum(1, keepdim=True).clamp(min=1)
        return batch.replace(loss_mask_bt=active_bt & self._inside(value_bt))

    def _inside(self, value_bt: Tensor) -> Tensor:
        if self.statistic != "k1":
            return value_bt <= self.high
        return (value_bt >= math.log(self._low)) & (value_bt <= math.log(self.high))

    @override
    def words(self) -> str:
        return f"leave out {_OVER[self.over]} on which policy and sampler differ too much: {self._region()}"

    @override
    def formula(self) -> str:
        return f"keep where {self._region()},  d = log π_old - log π_behavior"

    def _region(self) -> str:
        where = {"token": "", "sequence_sum": "Σ_t ", "sequence_mean": "mean_t ", "sequence_max": "max_t "}[self.over]
        if self.statistic == "k1":
            return f"log {self._low:g} ≤ {where}(-d) ≤ log {self.high:g}"
        return f"{where}{'d²/2' if self.statistic == 'k2' else '(e^d - 1 - d)'} ≤ {self.high:g}"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if the sampler is exact."""
        return [f"{self.name} has no effect: the sampler is exact"] if run.exact_sampler else []
