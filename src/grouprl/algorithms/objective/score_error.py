"""Scores fitted to rewards: to ratings by least squares, to labels by their likelihood."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from typing_extensions import override

from grouprl.algorithms.losses import RowLoss, counted
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.outputs import HEAD, SCORE, numbered


@part("objective")
class ScoreError(Objective):
    """(r(x, y) - R)²: the model's score of a row is fitted to its reward."""

    log_probs: ClassVar[bool] = False
    asks = (SCORE,)
    says = "fit the score of each completion to its reward, by least squares"
    equation = "(r(x, y) - R)²"
    plain = f"loss_bt = (row_outputs['{SCORE}'] - reward_b).square()[:, None] * active_bt"

    def __call__(self, logp_bt: Tensor, batch: Batch) -> RowLoss:
        """Return (r - R)² of each row; log-probs are not read."""
        error_b = batch.need(f"row_outputs.{SCORE}", self.name) - batch.total_reward_b
        return RowLoss(error_b.square(), {"score_error": error_b.abs()})

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


@part("objective")
class AttributeErrors(Objective):
    """Mean over attributes of (r_k(x, y) - R_k)²: a score for each of several ratings, from one layer.

    `attributes` name the ratings, components of the reward; score number k belongs to the k-th of them.

    Raises:
        InputError: fewer than two attributes, or one twice.
    """

    attributes: tuple[str, ...] = ("helpfulness", "correctness")
    log_probs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if len(self.attributes) < 2 or len(set(self.attributes)) < len(self.attributes):
            raise InputError(
                f"attribute_errors has the attributes {', '.join(self.attributes) or 'none'}",
                "they are two or more, each named once",
                "Use score_error (reward_regression) for a single rating",
            )

    @override
    def outputs(self) -> tuple[str, ...]:
        return numbered(HEAD, len(self.attributes))

    @override
    def needs(self) -> tuple[str, ...]:
        return tuple(f"rewards.{name}" for name in self.attributes)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> RowLoss:
        """Return the mean over attributes of (r_k - R_k)² of each row; log-probs are not read."""
        pairs = zip(self.outputs(), self.needs(), strict=True)
        errors = [
            batch.need(f"row_outputs.{score}", self.name) - batch.need(rated, self.name) for score, rated in pairs
        ]
        error_bk = torch.stack(errors, 1)
        return RowLoss(error_bk.square().mean(1), {"score_error": error_bk.abs().mean(1)})

    @override
    def words(self) -> str:
        return f"fit a score of its own to each of {', '.join(self.attributes)}, by least squares"

    @override
    def formula(self) -> str:
        return f"1/{len(self.attributes)} Σ_k (r_k(x, y) - R_k)²,  k: {', '.join(self.attributes)}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        errors = ", ".join(
            f"row_outputs[{score!r}] - rewards[{name!r}]"
            for score, name in zip(self.outputs(), self.attributes, strict=True)
        )
        return f"loss_bt = torch.stack([{errors}], 1).square().mean(1)[:, None] * active_bt"

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows that do not count, or have no token in the loss."""
        return counted(batch) == 0
