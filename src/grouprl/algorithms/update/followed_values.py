"""The update of a value learner: steps on its error, a follower that keeps targets still, and ever less exploration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.update.update import Update, UpdateSteps
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.numbers import Count, Share
from grouprl.protocols import ValueLearner


@part("update")
class FollowedValues(Update):
    """Value learning: after every `every` rollouts the follower takes the values as they are (Mnih et al. 2015).

    Targets of a rollout are the follower's, so they stay as they are during its optimiser steps. The share of random
    actions falls in a line from `explore` to `explore_last` within `explore_steps` steps of the run. Both are in the
    checkpoint, in the policy's weights.
    """

    every: Count = 4
    explore: Share = 1.0
    explore_last: Share = 0.05
    explore_steps: Annotated[int, Field(ge=0)] = 50
    says = (
        "values learn by regression; those that targets are made of are renewed every {every} rollouts, and random "
        "actions fall from {explore:g} to {explore_last:g} of all within {explore_steps} steps"
    )
    equation = "Q⁻ ← Q every {every} rollouts"

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the steps; yield the metrics of each.

        Raises:
            InputError: the policy does not act by values.
        """
        policy = learner.policy
        if not isinstance(policy, ValueLearner):
            raise InputError(
                f"the update '{self.name}' with {type(policy).__name__}",
                "it needs a policy that acts by values and follows them",
                "Take model: team_values or choice_values",
            )
        for step in learner.steps(prepared):
            yield learner.take(step)
        done = learner.context.step + 1
        if done % self.every == 0:
            policy.follow()
        policy.explore(self.share(done))

    def share(self, step: int) -> float:
        """Return the share of random actions in step `step` of the run, from 0."""
        part = min(1.0, step / self.explore_steps) if self.explore_steps else 1.0
        return self.explore * (1 - part) + self.explore_last * part

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the follower never moves if the run ends before."""
        late = (
            f"{self.name} never renews what targets are made of: the run has {run.steps} steps, every is {self.every}"
        )
        return [late] if run.steps < self.every else []
