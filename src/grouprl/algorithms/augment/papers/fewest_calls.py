"""The fewest tool calls with which each prompt was ever solved."""

from __future__ import annotations

import numpy as np
import torch

from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import SOURCES, Batch
from grouprl.records.samples import ScoredSamples


@part("augment")
class FewestCalls(Augmentation):
    """Remember the fewest turns before the last of a right episode, prompt by prompt: `past.fewest_calls` (OTC).

    -1 where no episode was right in an earlier step. The rows stay as they are.
    """

    says = "remember of each prompt the fewest turns before the last of a right episode"
    equation = "n ← min(n, turns - 1) over right episodes"
    fills = ("past.fewest_calls",)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows unchanged."""
        return samples

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `past.fewest_calls`."""
        known = self._known(context)
        fewest_b = [float(known.get(index, -1)) for index in samples.index_b.tolist()]
        return batch.replace(past={**batch.past, "fewest_calls": torch.tensor(fewest_b, dtype=batch.dtype)})

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Remember how many calls this step's right episodes needed."""
        known = self._known(context)
        turn_bt = samples.extras.get("turn_bt")
        calls_b = np.zeros(len(samples)) if turn_bt is None else turn_bt.max(1, initial=0)
        right_b = samples.scores.correct_b & (samples.source_b == SOURCES["sampled"])
        for index, calls in zip(samples.index_b[right_b].tolist(), calls_b[right_b].tolist(), strict=True):
            known[index] = min(int(calls), known.get(index, int(calls)))

    def _known(self, context: RunContext) -> dict[int, int]:
        return context.state_of(self).setdefault("fewest", {})

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if no prompt is sampled again."""
        if run.examples is not None:
            return []
        return ["fewest_calls has no effect: prompts never end, so none is sampled again. Set data.prompts"]
