"""The rows of the last steps, all of them, beside the new ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from grouprl.algorithms.buffer.replayed_rows import joined, own_rows
from grouprl.algorithms.data_part import Buffer, RunContext
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch
from grouprl.core.json_types import State
from grouprl.core.numbers import Count
from grouprl.records.samples import ScoredSamples
from grouprl.records.serialize import pack, unpack


@part("buffer")
class RecentRows(Buffer):
    """All rows of the last `batches` rollouts, the new one included, are learnt from in every step (PROPS).

    Old rows have the log-probs and values of the policy as it is, computed anew: nothing corrects for the policies that
    sampled them. Source: Corrado and Hanna 2023 (arXiv:2311.08290), algorithm 1.
    """

    batches: Count = 2
    says = "each step learns from all rows of the last {batches} rollouts, with log-probs and values computed anew"
    idle_at = ("batches", 1, "recent_rows has no effect: batches is 1, the new rollout alone")

    def mix(self, samples: ScoredSamples | None, context: RunContext) -> ScoredSamples | None:
        """Return the new rows and those of the rollouts before."""
        stored = self._stored(context)
        if samples is None and not stored:
            return None
        old = [unpack(entry["rows"], context.task) for entry in stored]
        anew = [replace(rows, foreign_b=np.ones(len(rows), dtype=bool)) for rows in old]
        return joined(samples, anew, [int(entry["step"]) for entry in stored], context)

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Store the rows that were sampled for this step, and forget the oldest rollout."""
        if prepared is None:
            return
        rows, _ = own_rows(samples, prepared)
        kept = [*self._stored(context), {"step": context.step, "rows": pack(rows)}]
        context.state_of(self)["rollouts"] = kept[1 - self.batches :] if self.batches > 1 else []

    def _stored(self, context: RunContext) -> list[State]:
        return context.state_of(self).get("rollouts", [])
