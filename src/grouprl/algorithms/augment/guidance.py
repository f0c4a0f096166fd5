"""Help for prompts that no completion got right: the base of such parts.

A hint is part of the prompt (or the forced beginning of the completion), so it is never trained on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grouprl.algorithms.augment.resampling import dead_groups
from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts
from grouprl.core.batch import SOURCES
from grouprl.records.samples import ScoredSamples

GUIDED = SOURCES["guided"]


class OnDeadGroup(Augmentation):
    """Base: help for prompts whose sampled completions are all wrong, given after the share `start` of the run."""

    needs_text = True

    start: float

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows with help for the zero-variance groups; the others are left as they are."""
        if context.step < self.start * context.steps:
            return samples
        return self.help(samples, dead_groups(samples), context)

    def help(self, samples: ScoredSamples, dead: Sequence[np.ndarray], context: RunContext) -> ScoredSamples:
        """Return the rows with help for the groups `dead` (rows [N] of each)."""
        raise NotImplementedError

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if it starts when the run ends."""
        return [f"{self.name} has no effect: it starts when the run ends"] if self.start >= 1 else []


def needs_solutions(name: str, run: RunFacts) -> list[str]:
    """Return why a part that needs right solutions cannot work without them; empty when the task has some."""
    if run.demonstrations:
        return []
    return [f"{name} needs right solutions, and the task has none. Use a task with solutions, or leave {name} out"]


def writes_solutions(name: str, run: RunFacts) -> list[str]:
    """Return why a part cannot add the task's right solutions as completions; empty if it can."""
    if run.environment:
        return [
            f"{name} adds right solutions as completions, and an episode of this task is played in its environment. "
            f"Use a task of a single turn, or leave {name} out"
        ]
    return needs_solutions(name, run)
