"""Scores fitted to rewards: to ratings by least squares, to labels by their likelihood."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn.functional import logsigmoid

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

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return f"loss_bt = (row_outputs['{SCORE}'] - reward_b).square()[:, None] * active_bt"

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows that do not count, or have no token in the loss."""
        return counted(batch) == 0


@part("objective")
class ScoreLikelihood(Objective):
    """-[R·log σ(r(x, y)) + (1 - R)·log σ(-r(x, y))]: σ of the score is the chance that a label is 1.

    Rewards are labels 0 and 1, or chances between them. The cross-entropy of two classes with the score as difference
    of their logits.
    """

    log_probs: ClassVar[bool] = False
    asks = (SCORE,)
    says = "fit the chance σ(score) of each row to its label"
    equation = "-[R·log σ(r) + (1 - R)·log σ(-r)]"

    def __call__(self, logp_bt: Tensor, batch: Batch) -> RowLoss:
        """Return the cross-entropy of each row; log-probs are not read."""
        score_b, label_b = batch.need(f"row_outputs.{SCORE}", self.name), batch.total_reward_b
        loss_b = -label_b * logsigmoid(score_b) - (1 - label_b) * logsigmoid(-score_b)
        right_b = ((score_b > 0) == (label_b > 0.5)).to(score_b.dtype)
        return RowLoss(loss_b, {"label_accuracy": right_b})

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        of_z = "torch.nn.functional.logsigmoid"
        return f"""score_b = row_outputs['{SCORE}']
loss_b = -reward_b * {of_z}(score_b) - (1 - reward_b) * {of_z}(-score_b)
loss_bt = loss_b[:, None] * active_bt"""

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows that do not count, or have no token in the loss."""
        return counted(batch) == 0
