"""Correct completions of the task among, or instead of, those of the policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from grouprl.algorithms.augment.guidance import writes_solutions
from grouprl.algorithms.augment.resampling import again, groups, sampled_rows, splice
from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples


def demonstrated(requests: Sequence[RolloutRequest], context: RunContext) -> ScoredSamples | None:
    """Return one row with the right solution per request, None if the task has no solution for any of them."""
    known = [(request, context.task.solution(request.example)) for request in requests]
    pairs = [(request, text) for request, text in known if text]
    if not pairs:
        return None
    return context.text.rows_of_texts([request for request, _ in pairs], [text for _, text in pairs])


@part("augment")
class DemonstrationRow(Augmentation):
    """The right solution is one row of each group (TempSamp-R1, arXiv:2509.18056: three completions and the solution).

    It takes the place of the group's last completion, so that the group keeps its size; `replace=False` adds it.
    Prompts without a solution are left as they are.
    """

    needs_text = True

    replace: bool = True

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows with a demonstration in each group."""
        requested = list(groups(samples, sampled_rows(samples)))
        shown = demonstrated([again(samples, rows[0]) for rows in requested], context)
        if shown is None:
            return samples
        gone_b = np.zeros(len(samples), dtype=bool)
        last = [rows[-1] for rows in requested if samples.group_b[rows[0]] in shown.group_b]
        gone_b[last] = self.replace
        return splice(samples, gone_b, [shown])

    @override
    def words(self) -> str:
        return f"the right solution {'replaces the last completion of' if self.replace else 'joins'} each group"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task without solutions or of episodes, and replacing the only completion of a group."""
        if self.replace and run.group_size == 1:
            return [
                "demonstration_row would replace the only completion of a group, for batch.group_size is 1. Use "
                "batch.group_size of 2 or more, or replace: false"
            ]
        return writes_solutions(self.name, run)
