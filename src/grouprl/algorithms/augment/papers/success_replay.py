"""A stored success takes a place in a group that failed altogether (ARPO)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from grouprl.algorithms.augment.resampling import further_numbers, groups, sampled_rows, splice
from grouprl.algorithms.buffer.replayed_rows import own_rows
from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.numbers import Count
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.serialize import pack, unpack


@part("augment")
class SuccessReplay(Augmentation):
    """ARPO: a stored success of the same prompt takes the first place of a group that failed (arXiv:2505.16282).

    Each prompt keeps the last `capacity` completions whose reward was above `success`. A group of two or more failed
    when the standard deviation of its rewards (n-1) is below `spread` and their mean below `failed`. The success keeps
    the log-probs it was sampled with and counts in the statistics of the group.
    """

    capacity: Count = 8
    success: float = 0.1
    failed: float = 0.2
    spread: Annotated[float, Field(gt=0)] = 0.05
    says = (
        "the first completion of a group that failed (mean reward below {failed:g}, spread below {spread:g}) "
        "gives way to one of the last {capacity} successes of its prompt"
    )

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Replace the first row of every failed group whose prompt was solved before."""
        store, rng = context.state_of(self), context.rng(self)
        gone_b = np.zeros(len(samples), dtype=bool)
        added = []
        for rows in groups(samples, sampled_rows(samples)):
            known = store.get(_key(samples, int(rows[0])), [])
            if known and self.has_failed(samples.scores.reward_b[rows]):
                old = unpack(known[rng.integers(len(known))], context.task)
                gone_b[rows[0]] = True
                added.append(_in_place_of(samples, rows[0], old))
        context.note("successes_replayed", len(added))
        return splice(samples, gone_b, added) if added else samples

    def has_failed(self, reward_n: np.ndarray) -> bool:
        """Return whether a group with these rewards [N] failed altogether."""
        if len(reward_n) < 2:
            return False
        return bool(reward_n.std(ddof=1) < self.spread and reward_n.mean() < self.failed)

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Store the successes of the step."""
        if prepared is None:
            return
        rows, _ = own_rows(samples, prepared)
        store = context.state_of(self)
        for i in np.flatnonzero(rows.scores.reward_b > self.success):
            key = _key(rows, int(i))
            store[key] = [*store.get(key, []), pack(subset(rows, np.array([i])))][-self.capacity :]

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if no prompt is sampled twice."""
        if run.examples is not None and run.steps * run.prompts > run.examples:
            return []
        return ["success_replay has no effect: no prompt is sampled twice in this run. Set data.prompts"]


def _key(samples: ScoredSamples, row: int) -> str:
    """Return a name for the prompt of a row and the agent that acted."""
    agent_b = samples.extras.get("agent_b")
    return f"{samples.index_b[row]}/{0 if agent_b is None else agent_b[row]}"


def _in_place_of(samples: ScoredSamples, row: int, old: ScoredSamples) -> ScoredSamples:
    """Return the stored row as a member of the group of `row`, under a number of its own."""
    number_b = further_numbers(samples, np.array([row]))
    extras = dict(old.extras)
    if "keys.prompt" in extras:  # an episode of this step: no other row is of the same one
        extras["keys.prompt"] = samples.extras["keys.prompt"][[row]]
        extras["keys.episode"] = -1 - samples.extras["keys.episode"][[row]]
    moved = replace(old, group_b=samples.group_b[[row]], sample_b=number_b, extras=extras)
    return moved.with_source("replay")
