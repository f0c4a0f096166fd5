"""Demonstrations instead of groups that failed (HPT)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from grouprl.algorithms.augment.demonstrations import demonstrated
from grouprl.algorithms.augment.guidance import writes_solutions
from grouprl.algorithms.augment.resampling import again, groups, sampled_rows, splice
from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.records.samples import ScoredSamples


@part("augment")
class DemonstrationSwitch(Augmentation):
    """HPT: where a group's share of correct completions is at most `gamma`, the solution replaces it
    (arXiv:2509.04419).

    A `gamma` below 0 never replaces a group, 1 always. Prompts without a solution are left as they are.
    """

    needs_text = True

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
        """Say that the part has no effect if `gamma` is below 0."""
        return ["demonstration_switch has no effect: gamma is below 0"] if self.gamma < 0 else []

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task without right solutions, or of episodes."""
        return writes_solutions(self.name, run)
