"""A separate update for replayed completions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field

from grouprl.algorithms.part import part
from grouprl.algorithms.update.update import Update, UpdateSteps
from grouprl.core.batch import Batch


@part("update")
class ReplayPass(Update):
    """SPEAR: the steps on new completions first, then one step on all replayed ones, with a loss of its own weight.

    The weight is coef · (1 - cos(π·step/rise))/2 until step `rise`, then coef. Denominators are those of each kind of
    completions alone.
    """

    phases: ClassVar[int] = 2

    coef: Annotated[float, Field(ge=0)] = 1.0
    rise: Annotated[int, Field(ge=0)] = 200
    says = (
        "update on new completions first, then once on the replayed ones, whose loss weighs {coef:g} from step "
        "{rise} on and less before"
    )
    reads = ("step",)
    idle_at = ("coef", 0, "replay_pass takes no second pass: coef is 0")

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the steps on new rows, then one on the replayed rows if there are any."""
        old_b = prepared.from_source("replay")
        if not bool(old_b.all()):
            for step in learner.steps(prepared.rows(~old_b)):
                yield learner.take(step)
        if bool(old_b.any()) and (weight := self.weight(prepared)) > 0:
            step = learner.method.compute_loss_weights(prepared.rows(old_b))
            yield learner.take(step.replace(weight_bt=weight * step.need("weight_bt", self.name)))

    def weight(self, batch: Batch) -> float:
        """Return the weight of the replay loss at the batch's step."""
        step = batch.need("step", self.name)
        return self.coef if step >= self.rise else self.coef * (1 - math.cos(math.pi * step / self.rise)) / 2
