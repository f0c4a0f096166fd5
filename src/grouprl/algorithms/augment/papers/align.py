"""Equally many rows of called agents in every episode."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from grouprl.algorithms.advantage.per_agent import one_agent
from grouprl.algorithms.augment.resampling import further_numbers, sampled_rows
from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.records.joining import join
from grouprl.records.samples import ScoredSamples, sort_by_group, subset


@part("augment")
class AlignCalls(Augmentation):
    """M-GRPO's trajectory alignment: `calls` rows of every called agent in every episode (arXiv:2511.13288).

    If an agent was called less often, rows chosen at random are doubled; if more often, rows chosen at random are left
    out; if never, it has no rows. Copies count in the statistics of their group.
    """

    calls: Annotated[int, Field(ge=1)] = 1
    says = "every episode has {calls} rows of each agent that was called: some doubled, some left out"

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows of first agents, and `calls` of each called agent for each episode."""
        agent_b, episode_b = samples.extras.get("agent_b"), samples.extras.get("keys.episode")
        if agent_b is None or episode_b is None or not agent_b.any():
            return samples
        rng, valid_b = context.rng(self), sampled_rows(samples) & (agent_b > 0)
        stay, copied = [np.flatnonzero(~valid_b)], [np.zeros(0, dtype=np.int64)]
        for name in dict.fromkeys(zip(episode_b[valid_b].tolist(), agent_b[valid_b].tolist(), strict=True)):
            rows = np.flatnonzero(valid_b & (episode_b == name[0]) & (agent_b == name[1]))
            stay.append(rng.choice(rows, min(self.calls, len(rows)), replace=False))
            copied.append(rng.choice(rows, max(0, self.calls - len(rows))))
        once, twice = np.sort(np.concatenate(stay)), np.sort(np.concatenate(copied))
        context.note("rows_doubled", len(twice))
        context.note("rows_surplus", len(samples) - len(once))
        return sort_by_group(join([subset(samples, once), *([copies(samples, twice)] if len(twice) else [])]))

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if the task has one agent."""
        return one_agent(self.name, run)


def copies(samples: ScoredSamples, rows: np.ndarray) -> ScoredSamples:
    """Return copies of `rows` [N] under numbers of their own."""
    return replace(subset(samples, rows), sample_b=further_numbers(samples, rows)).with_source("extra")
