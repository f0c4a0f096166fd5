"""Demonstrations as rows: instead of failed groups (HPT), of every prompt (OTR)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from grouprl.algorithms.data_part import Augmentation, Replay, RunContext
from grouprl.algorithms.exploration.demonstrations import demonstrated
from grouprl.algorithms.exploration.guidance import needs_solutions
from grouprl.algorithms.exploration.resampling import again, groups, sampled_rows, splice
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.errors import RunError
from grouprl.records.samples import ScoredSamples


@part("augment")
class DemonstrationSwitch(Augmentation):
    """HPT: where a group's share of correct completions is at most `gamma`, the solution replaces it
    (arXiv:2509.04419).

    A `gamma` below 0 switches never, 1 always. Prompts without a solution are left as they are.
    """

    gamma: Annotated[float, Field(ge=-1, le=1)] = 0.0
    says = "the right solution replaces a group of which at most {gamma:.0%} are right"

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows with weak groups demonstrated."""
        right_b = samples.scores.correct_b
        weak = [rows for rows in groups(samples, sampled_rows(samples)) if right_b[rows].mean() <= self.gamma + 1e-9]
        shown = demonstrated([again(samples, rows[0]) for rows in weak], context)
        switched = [] if shown is None else [r for r in weak if samples.group_b[r[0]] in shown.group_b]
        context.note("groups_demonstrated", len(switched))
        if shown is None:
            return samples
        gone_b = np.zeros(len(samples), dtype=bool)
        gone_b[np.concatenate(switched)] = True
        return splice(samples, gone_b, [shown])

    def idle(self, run: RunFacts) -> list[str]:
        """No share is below zero."""
        return ["demonstration_switch has no effect: gamma is below 0"] if self.gamma < 0 else []

    def refuse(self, run: RunFacts) -> list[str]:
        """Demonstrations are the task's solutions."""
        return needs_solutions(self.name, run)


@part("buffer")
class Demonstrations(Replay):
    """Train on the task's right solutions alone: nothing is sampled (supervised variants: SFT, OTR,
    arXiv:2509.26313)."""

    says = "train on the right solution of each prompt; nothing is sampled"

    def fresh(self, context: RunContext) -> int:
        """No new prompts are sampled."""
        return 0

    def mix(self, samples: ScoredSamples | None, context: RunContext) -> ScoredSamples:
        """Return one demonstration per prompt. Raises RunError if none of the step's prompts has one."""
        shown = demonstrated(context.take(context.prompts), context)
        if shown is None:
            raise RunError("none of this step's prompts has a right solution, and the method trains on nothing else")
        return shown

    def refuse(self, run: RunFacts) -> list[str]:
        """Demonstrations are the task's solutions."""
        return needs_solutions(self.name, run)
