"""The score of a reward model for a user drawn from its belief about who judges (VPL)."""

from __future__ import annotations

from grouprl.algorithms.part import part
from grouprl.algorithms.score.model_score import ModelScore
from grouprl.core.outputs import DRAWN_SCORE


@part("score")
class DrawnScore(ModelScore):
    """The output `drawn_score` of a reward model of users: the score for a user drawn from its belief (VPL)."""

    asks = (DRAWN_SCORE,)
    says = "the score that the model gives to prompt and completion for a user drawn from its belief about who judges"
    equation = "s(y) = r(y, z),  z ~ q(z | judgements)"
