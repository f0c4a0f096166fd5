"""A policy that waits for its critic before its first optimiser step (ArCHer)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.update.update import Update, UpdateSteps
from grouprl.core.batch import Batch


@part("update")
class LateStart(Update):
    """The policy takes no optimiser step before step `start` of the run, from 0; later steps are ordinary."""

    start: Annotated[int, Field(ge=0)] = 20
    says = "the policy stays as it is before step {start}"

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the steps from step `start` on."""
        if prepared.need("step", self.name) >= self.start:
            for step in learner.steps(prepared):
                yield learner.take(step)

    def first_step(self) -> int:
        """Return the step of the run, from 0, in which the policy takes its first optimiser step."""
        return self.start

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if `start` is 0, and that the policy never learns if the run is too short."""
        if self.start == 0:
            return ["late_start has no effect: start is 0"]
        return [f"the policy never learns: late_start waits {self.start} of {run.steps} steps"] * (
            self.start >= run.steps
        )
