"""Turns that failed, sampled again from where they began, as groups of single turns (THOR)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.augment.papers.branching import between_turns
from grouprl.algorithms.augment.prefix_turns import led
from grouprl.algorithms.augment.resampling import groups, sampled_rows, splice
from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import SOURCES
from grouprl.core.numbers import Count
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples


@part("augment")
class FailedSteps(Augmentation):
    """THOR: a turn that failed is sampled again, as a group of its own; it earns 1 if it is valid (arXiv:2509.13761).

    For each prompt, up to `most` invalid turns are chosen at random. The turns before are replayed and not trained on;
    then the policy acts `completions` times (None: the run's group size), one turn each. The new rows have the source
    'extra' and form groups of their own, apart from the episodes.
    """

    needs_text = True

    most: Count = 1
    completions: Annotated[int, Field(ge=2)] | None = None
    equation = "step groups: R = [valid], from the turn that failed"

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows with the groups of single turns."""
        requests, numbers = self._requests(samples, context)
        if not requests:
            return samples
        sampled = context.sample(requests)
        wanted = dict(zip(((request.ordinal, request.first) for request in requests), numbers, strict=True))
        group_b = [
            self._group(wanted, *x) for x in zip(sampled.ordinal_b.tolist(), sampled.sample_b.tolist(), strict=True)
        ]
        steps = replace(self._prepared(sampled), group_b=np.array(group_b, dtype=np.int64))
        return splice(samples, np.zeros(len(samples), dtype=bool), [steps])

    def _requests(self, samples: ScoredSamples, context: RunContext) -> tuple[list[RolloutRequest], list[int]]:
        """Return a request for each failed turn to sample again, and the number of its group."""
        rng, requests, numbers = context.rng(self), [], []
        for rows in groups(samples, sampled_rows(samples)):
            failed, size = failures(samples, rows), self.completions or context.group_size
            chosen = rng.permutation(len(failed))[: self.most]
            for place, which in enumerate(chosen.tolist()):
                row, turn = failed[which]
                requested = {"completions": size, "max_turns": turn + 1, "source": SOURCES["extra"]}
                requests.append(led(samples, row, turn, skip=place * size, **requested))
                numbers.append(context.request(int(samples.index_b[row])).ordinal)
        return requests, numbers

    def _group(self, wanted: dict[tuple[int, int], int], ordinal: int, completion: int) -> int:
        """Return the group of a completion: that of the last request of its prompt that begins at or before it."""
        first = max(first for (own, first) in wanted if own == ordinal and first <= completion)
        return wanted[ordinal, first]

    def _prepared(self, steps: ScoredSamples) -> ScoredSamples:
        """Return the steps with reward 1 where the one turn was valid, else 0."""
        turn_bt = np.where(steps.acted_bt, steps.extras["turn_bt"][:, : steps.acted_bt.shape[1]], -1)
        last_b = turn_bt.max(1)
        valid_b = steps.extras["valid_bs"][np.arange(len(steps)), last_b.clip(min=0)] & (last_b >= 0)
        reward_bs = np.zeros_like(steps.extras["turn_reward_bs"])
        reward_bs[np.arange(len(steps)), last_b.clip(min=0)] = valid_b
        scores = replace(steps.scores, reward_b=valid_b.astype(steps.scores.reward_b.dtype), correct_b=valid_b)
        return replace(steps, scores=scores).with_extras(turn_reward_bs=reward_bs)

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many turns are sampled besides the completions of the run."""
        size = self.completions or run.group_size
        return f"up to {self.most * size} single turns for each prompt in which a turn failed; they are trained on"

    @override
    def words(self) -> str:
        return (
            f"of each prompt sample up to {self.most} failed turn{'s' if self.most > 1 else ''} again, as groups of "
            "single turns that earn 1 where they are valid"
        )

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without turns."""
        return between_turns(self.name, run)


def failures(samples: ScoredSamples, rows: Sequence[int] | np.ndarray) -> list[tuple[int, int]]:
    """Return (row, turn) of each invalid turn of `rows`."""
    turn_bt, valid_bs = samples.extras["turn_bt"], samples.extras["valid_bs"]
    return [
        (row, turn)
        for row in np.asarray(rows).tolist()
        for turn in range(int(turn_bt[row].max()) + 1)
        if not valid_bs[row, turn]
    ]
