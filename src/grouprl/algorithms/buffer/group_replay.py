"""Stored groups in place of some of a step's prompts: their base, and uniform draws from the last ones."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from grouprl.algorithms.augment.resampling import groups
from grouprl.algorithms.buffer.replayed_rows import joined, own_rows
from grouprl.algorithms.data_part import Buffer, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.json_types import State
from grouprl.core.numbers import Count, Share
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.serialize import pack, unpack


class GroupReplay(Buffer):
    """Base: some of a step's prompts are not sampled; their rows are whole stored groups of earlier steps."""

    def stored(self, context: RunContext) -> int:
        """Return how many prompts of this step are stored ones."""
        raise NotImplementedError

    def sample(self, count: int, context: RunContext) -> list[State]:
        """Choose `count` groups: {'step': number of their step, 'rows': packed rows}."""
        raise NotImplementedError

    def fresh(self, context: RunContext) -> int:
        """Return how many new prompts this step samples."""
        return context.prompts - self.stored(context)

    def mix(self, samples: ScoredSamples | None, context: RunContext) -> ScoredSamples | None:
        """Return the new rows and the stored groups."""
        chosen = self.sample(self.stored(context), context)
        if samples is None and not chosen:
            return None
        return joined(samples, [self.reread(e, context) for e in chosen], [int(e["step"]) for e in chosen], context)

    def reread(self, entry: State, context: RunContext) -> ScoredSamples:
        """Return the rows of a stored group."""
        return unpack(entry["rows"], context.task)

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Store the groups that were sampled for this step."""
        if prepared is None:
            return
        rows, _ = own_rows(samples, prepared)
        found = [subset(rows, index) for index in groups(rows, np.ones(len(rows), dtype=bool))]
        self.remember([{"step": context.step, "rows": pack(g)} for g in found if self.worth(g)], context)

    def worth(self, group: ScoredSamples) -> bool:
        """Return whether a group is stored."""
        return True

    def remember(self, entries: list[State], context: RunContext) -> None:
        """Store the groups of a finished step."""
        raise NotImplementedError


@part("buffer")
class RolloutReplay(GroupReplay):
    """A share of each step's groups comes from a first-in-first-out buffer (rollout replay, arXiv:2506.05316).

    `fresh_share` of the prompts are sampled anew, the others' groups are chosen uniformly among the latest group of
    each of the last `capacity` prompts. Their log-probs are those of the policy that sampled them, and so the
    denominators of the ratios. `mixed_only`: groups whose completions are all right or all wrong are not stored.
    `first_epoch`: a finite set of prompts is sampled once before anything is replayed. Until the buffer has enough
    groups, new prompts take their place.
    """

    fresh_share: Share = 0.5
    capacity: Count = 512
    mixed_only: bool = True
    first_epoch: bool = True

    def stored(self, context: RunContext) -> int:
        """Return (1 - fresh_share) of the prompts, once that many groups are stored."""
        if self.first_epoch and context.examples is not None and context.step * context.prompts < context.examples:
            return 0
        return min(int((1 - self.fresh_share) * context.prompts), len(self._entries(context)))

    def sample(self, count: int, context: RunContext) -> list[State]:
        """Choose groups uniformly, each at most once."""
        entries = self._entries(context)
        return (
            [entries[i] for i in sorted(context.rng(self).choice(len(entries), count, replace=False))] if count else []
        )

    def worth(self, group: ScoredSamples) -> bool:
        """Return whether a group is stored: with `mixed_only`, one with right and wrong completions."""
        return not self.mixed_only or len(set(group.scores.correct_b.tolist())) == 2

    def remember(self, entries: list[State], context: RunContext) -> None:
        """Store the latest group of each prompt, for the latest `capacity` prompts."""
        latest = {_index(entry): entry for entry in entries}
        before = [entry for entry in self._entries(context) if _index(entry) not in latest]
        context.state_of(self)["entries"] = [*before, *latest.values()][-self.capacity :]

    def _entries(self, context: RunContext) -> list[dict[str, object]]:
        return context.state_of(self).get("entries", [])

    @override
    def words(self) -> str:
        what = "that had right and wrong completions" if self.mixed_only else "sampled"
        return (
            f"{self.fresh_share:.0%} of each step's prompts are sampled anew; the other groups come from the last "
            f"{self.capacity} prompts {what}, weighted by the log-probs they were sampled with"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Say that nothing is replayed if every prompt is new, or if the run ends within its first pass."""
        if int((1 - self.fresh_share) * run.prompts) == 0:
            return [f"rollout_replay has no effect: {self.fresh_share:g} of {run.prompts} prompts leave none to replay"]
        if self.first_epoch and run.examples is not None and run.steps * run.prompts <= run.examples:
            return [f"rollout_replay has no effect: the run ends within its first pass of {run.examples} prompts"]
        return []


def _index(entry: State) -> int:
    return int(entry["rows"]["index_b"][0])
