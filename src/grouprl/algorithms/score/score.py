"""Scores of completions: the better completion of a pair should have the larger one."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import Part, RunFacts, part
from grouprl.core.batch import Batch

Length = Literal["sum", "mean"]
_SUM = {"sum": "Σ_t", "mean": "1/|y| Σ_t"}


class Score(Part):
    """Base: a number per completion, or a number for each of the two completions of a pair."""

    kind: ClassVar[str] = "score"
    linear: ClassVar[bool] = False
    """Whether the score is a weighted sum of log π/π_ref, so that it parts into one of log π and one of log π_ref."""

    ranked: ClassVar[bool] = False
    """Whether scores of pairs are those of ranks within the step; then every pair has the mean loss of all ranks."""

    def __call__(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return the score of each completion [B], differentiable in `logp_bt`."""
        raise NotImplementedError

    def of_pairs(self, logp_bt: Tensor, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return the scores [E,2] of the two completions of each pair, differentiable in `logp_bt`."""
        return self(logp_bt, batch)[index_e2]

    def implicit(self) -> Score:
        """Return the score that a link's β makes the implicit reward of, before means, transforms or sorting."""
        return self


def over_tokens(value_bt: Tensor, batch: Batch, length: Length) -> Tensor:
    """Return [B] sum or mean over each row's active tokens, 0 for a row without any."""
    sum_b = torch.where(batch.active_bt, value_bt, 0).sum(1)
    return sum_b if length == "sum" else sum_b / batch.active_bt.sum(1).clamp(min=1)


def over_code(what: str, length: Length) -> str:
    """Return the line of plain torch that sums or averages `what` over each row's tokens, as `over_tokens` does."""
    mean = "" if length == "sum" else " / active_bt.sum(1).clamp(min=1)"
    return f"score_b = torch.where(active_bt, {what}, 0).sum(1){mean}"


def pairs_code(score: Score) -> str:
    """Return the lines of a score up to `score_2e`, of both completions of each pair; '' for one without."""
    held = score.code()
    return held if "score_2e" in held or not held else f"{held}\nscore_2e = score_b[index_2e]"


def without_reference(run: RunFacts, name: str) -> list[str]:
    """Say why a score against the reference cannot work without a reference model."""
    return [] if run.has_reference else [f"{name} compares with a reference model. Set model.reference: initial"]


@part("score")
class LogRatio(Score):
    """log π/π_ref of the completion, summed over its tokens (DPO, arXiv:2305.18290) or averaged."""

    length: Length = "sum"
    linear: ClassVar[bool] = True
    reads = ("ref_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return Σ_t log π(y_t)/π_ref(y_t)."""
        return over_tokens(logp_bt - batch.need("ref_bt", self.name), batch, self.length)

    @override
    def implicit(self) -> Score:
        return replace(self, length="sum")

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

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return over_code("logp_bt - ref_bt", self.length)


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

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return over_code("logp_bt", self.length)
