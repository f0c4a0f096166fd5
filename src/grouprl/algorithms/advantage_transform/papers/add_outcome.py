"""The outcome as a second advantage, added to that of self-certainty."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.levels import Scale


@part("advantage_transform")
class AddOutcome(AdvantageTransform):
    """Add the outcome, normalised within its group on its own: A + w(R - mean_g R)/(std_g R + eps).

    R is the reward before any shaping; the two are standardised separately, so that neither dominates by its scale.
    """

    weight: Annotated[float, Field(gt=0)] = 1.0
    scale: Scale = "sample_std"
    eps: Annotated[float, Field(ge=0)] = 1e-6
    says = "plus {weight:g} times the outcome's own group-relative advantage"
    equation = "A ← A + {weight:g}·(R - mean_g R)/(std_g R + {eps:g}),  R before shaping"

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return A + w·A_outcome."""
        counted_b = batch.stats_b.to(batch.dtype)
        outcome_b = levels.relative(batch.outcome_b, batch.group_b, scale=self.scale, eps=self.eps, weight_n=counted_b)
        return adv_bt + self.weight * batch.broadcast(outcome_b)

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if groups hold one completion."""
        return ["add_outcome has no effect: a group of one has no spread"] if run.group_size == 1 else []
