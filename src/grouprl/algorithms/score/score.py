"""Scores of completions: the better completion of a pair should have the larger one."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import Part, RunFacts, part
from grouprl.core.batch import Batch

Length = Literal["sum", "mean"]
_SUM = {"sum": "Σ_t", "mean": "1/|y| Σ_t"}


class Score(Part):
    """Base: a number per completion, or a difference per pair."""

    kind: ClassVar[str] = "score"

    def __call__(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return the score of each completion [B], differentiable in `logp_bt`."""
        raise NotImplementedError

    def difference(self, logp_bt: Tensor, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return the score of the first completion of each pair minus that of the second, [E]."""
        score_b = self(logp_bt, batch)
        return score_b[index_e2[:, 0]] - score_b[index_e2[:, 1]]


def over_tokens(value_bt: Tensor, batch: Batch, length: Length) -> Tensor:
    """Return [B] sum or mean over each row's active tokens, 0 for a row without any."""
    sum_b = torch.where(batch.active_bt, value_bt, 0).sum(1)
    return sum_b if length == "sum" else sum_b / batch.active_bt.sum(1).clamp(min=1)


def without_reference(run: RunFacts, name: str) -> list[str]:
    """Say why a score against the reference cannot work without a reference model."""
    return [] if run.has_reference else [f"{name} compares with a reference model. Set model.reference: initial"]


@part("score")
class LogRatio(Score):
    """log π/π_ref of the completion, summed over its tokens (DPO, arXiv:2305.18290) or averaged."""

    length: Length = "sum"
    reads = ("ref_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return Σ_t log π(y_t)/π_ref(y_t)."""
        return over_tokens(logp_bt - batch.need("ref_bt", self.name), batch, self.length)

    @override
    def words(self) -> str:
        how = "" if self.length == "sum" else ", averaged over its tokens"
        return f"how much likelier the completion is than under the reference{how}"

    @override
    def formula(self) -> str:
        return f"s(y) = {_SUM[self.length]} log π(y_t)/π_ref(y_t)"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without a reference model."""
        return without_reference(run, self.name)


@part("score")
class LogProb(Score):
    """log π of the completion, averaged over its tokens (SimPO, arXiv:2405.14734) or summed (CPO, arXiv:2401.08417)."""

    length: Length = "mean"

    def __call__(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return 1/|y| Σ_t log π(y_t)."""
        return over_tokens(logp_bt, batch, self.length)

    @override
    def words(self) -> str:
        return f"the completion's log-prob, {'averaged over its tokens' if self.length == 'mean' else 'summed'}"

    @override
    def formula(self) -> str:
        return f"s(y) = {_SUM[self.length]} log π(y_t)"
