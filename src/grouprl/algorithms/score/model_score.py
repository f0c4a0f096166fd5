"""The score that the model itself gives to a whole row, as a reward model does."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from grouprl.algorithms.part import part
from grouprl.algorithms.score.score import Score
from grouprl.core.batch import Batch
from grouprl.core.outputs import SCORE


@part("score")
class ModelScore(Score):
    """The output `score` of a reward model: one number for prompt and completion, in place of log-probs."""

    log_probs: ClassVar[bool] = False
    asks = (SCORE,)
    says = "the score that the model gives to prompt and completion"
    equation = "s(y) = r(x, y)"

    def __call__(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return r(x, y) of each row; log-probs are not read."""
        score_b: Tensor = batch.need(f"row_outputs.{self.asks[0]}", self.name)
        return score_b

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return f"score_b = row_outputs['{self.asks[0]}']"
