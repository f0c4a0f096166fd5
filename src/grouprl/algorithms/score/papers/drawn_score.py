"""The score of a reward model for a user drawn from what it believes of who judges (VPL)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from grouprl.algorithms.part import part
from grouprl.algorithms.score.score import Score
from grouprl.core.batch import Batch
from grouprl.core.outputs import DRAWN_SCORE


@part("score")
class DrawnScore(Score):
    """The output `drawn_score` of a reward model of users: the score for a user drawn from its belief (VPL)."""

    log_probs: ClassVar[bool] = False
    asks = (DRAWN_SCORE,)
    says = "the score that the model gives to prompt and completion for a user drawn from its belief about who judges"
    equation = "s(y) = r(y, z),  z ~ q(z | judgements)"

    def __call__(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return r(y, z) of each row; log-probs are not read."""
        score_b: Tensor = batch.need(f"row_outputs.{DRAWN_SCORE}", self.name)
        return score_b

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return f"score_b = row_outputs['{DRAWN_SCORE}']"
