"""The nearness of a trajectory's context to the one that acts, as a score (OPPO)."""

from __future__ import annotations

from grouprl.algorithms.part import part
from grouprl.algorithms.score.model_score import ModelScore
from grouprl.core.outputs import CONTEXT_SCORE, GOAL_SCORE


@part("score")
class ContextScore(ModelScore):
    """Minus the distance of a trajectory's context from z*, which is held constant (OPPO, arXiv:2305.16217)."""

    asks = (CONTEXT_SCORE,)
    says = "how near the trajectory's context is to the one that acts; the trajectory's moves"
    equation = "s(τ) = -||I(τ) - sg(z*)||"


@part("score")
class GoalScore(ModelScore):
    """Minus the distance of z* from a trajectory's context, which is held constant (OPPO, arXiv:2305.16217)."""

    asks = (GOAL_SCORE,)
    says = "how near the context that acts is to the trajectory's; the one that acts moves"
    equation = "s(τ) = -||sg(I(τ)) - z*||"
