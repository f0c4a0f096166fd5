"""The duration of each action, as the environment reports it."""

from __future__ import annotations

import torch

from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.records.samples import ScoredSamples


@part("augment")
class ActionDurations(Augmentation):
    """Give `stats.duration`: the seconds that each turn's action took, on all its tokens.

    They are what the environment says (`Step.info["seconds"]`), 1 where it says nothing. The rows stay as they are.
    """

    says = "read how many seconds each action took, as the environment says"
    equation = "stats.duration = seconds of the turn's action"
    fills = ("stats.duration",)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows unchanged."""
        return samples

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `stats.duration`."""
        turn_bt = torch.where(batch.mask_bt, batch.need("turn_bt", self.name), 0).clamp(min=0)
        seconds_bs = torch.ones(len(turn_bt), int(turn_bt.max()) + 1, dtype=batch.dtype)
        for b, record in enumerate(samples.records or ()):
            for place, turn in enumerate(() if record is None else record.turns):
                if place < seconds_bs.shape[1]:
                    seconds_bs[b, place] = turn.seconds
        return batch.replace(stats={**batch.stats, "duration": seconds_bs.gather(1, turn_bt) * batch.mask_bt})

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task without turns."""
        if run.environment:
            return []
        return [
            "action_durations reads how long the actions of turns took, and the task has no turns. Use a task with "
            "an environment"
        ]
