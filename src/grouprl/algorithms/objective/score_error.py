"""Scores fitted to rewards, as a reward model that regresses on ratings."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from grouprl.algorithms.losses import RowLoss, counted
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch
from grouprl.core.outputs import SCORE


@part("objective")
class ScoreError(Objective):
    """(r(x, y) - R)²: the model's score of a row is fitted to its reward."""

    log_probs: ClassVar[bool] = False
    asks = (SCORE,)
    says = "fit the score of each completion to its reward, by least squares"
    equation = "(r(x, y) - R)²"

    def __call__(self, logp_bt: Tensor, batch: Batch) -> RowLoss:
        """Return (r - R)² of each row; log-probs are not read."""
        error_b = batch.need(f"row_outputs.{SCORE}", self.name) - batch.total_reward_b
        return RowLoss(error_b.square(), {"score_error": error_b.abs()})

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows that do not count, or have no token in the loss."""
        return counted(batch) == 0
