"""Scores of completions fitted to advantages."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import RowLoss
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.objective.regression import completion_value
from grouprl.algorithms.part import part
from grouprl.algorithms.score.score import LogRatio, Score
from grouprl.algorithms.stage_checks import call, check_shape
from grouprl.core.batch import Batch
from grouprl.core.numbers import Positive


@part("objective")
class FittedScore(Objective):
    """(s(y) - A/β)², s any score: against an earlier iterate SPPO's regression (arXiv:2405.00675, eq. 9).

    The minimiser of the square with s = log π/π_t is π ∝ π_t·exp(A/β) where the advantages hold their own baseline.
    Completions of advantage 0 are pulled to a score of 0, too.
    """

    score: Score = LogRatio()
    beta: Positive = 1.0
    says = "fit the score of each completion to its advantage divided by {beta:g}, by least squares"

    def __call__(self, logp_bt: Tensor, batch: Batch) -> RowLoss:
        """Return (s - A/β)² of each completion."""
        score_b = call(self.score, self.score, logp_bt, batch)
        check_shape(self.score, score_b, batch.mask_bt, "scores", (len(batch.group_b),), "row")
        target_b = completion_value(batch.need("advantage_bt", self.name), batch.active_bt) / self.beta
        return RowLoss((score_b - target_b).square())

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows without tokens; an advantage of 0 is a target, too."""
        return ~batch.active_bt.any(1)

    @override
    def formula(self) -> str:
        return f"(s(y) - A/{self.beta:g})²,  {self.score.formula()}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        if not (score := self.score.code()):
            return ""
        return f"""{score}
target_b = adv_bt.sum(1) / active_bt.sum(1).clamp(min=1) / {self.beta!r}
loss_bt = (score_b - target_b).square()[:, None] * active_bt"""
