"""Mean and spread of the rewards of all steps so far (PPO-max)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from typing_extensions import override

from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import part
from grouprl.core.batch import SOURCES, Batch
from grouprl.records.samples import ScoredSamples

NOTHING: Mapping[str, float] = {"count": 0.0, "mean": 0.0, "squares": 0.0}


@part("augment")
class RunningMoments(Augmentation):
    """Give `past.reward_mean` and `past.reward_std`: of the rewards of all sampled rows, this step's included.

    Moments of steps are merged (Chan et al. 1979), so that they are those of all rewards together; the spread divides
    by n - 1, and is 0 before there are two rewards. The rows are unchanged.
    """

    says = "keep mean and spread of all rewards so far"
    equation = "μ, σ: of the rewards of all steps up to this one"
    fills = ("past.reward_mean", "past.reward_std")

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows unchanged."""
        return samples

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `past.reward_mean` and `past.reward_std`."""
        found = self._with(samples, context)
        std = math.sqrt(found["squares"] / (found["count"] - 1)) if found["count"] > 1 else 0.0
        filled = {"reward_mean": found["mean"], "reward_std": std}
        ones_b = torch.ones_like(batch.reward_b)
        return batch.replace(past={**batch.past, **{name: value * ones_b for name, value in filled.items()}})

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Remember the moments with this step's rewards."""
        context.state_of(self).update(self._with(samples, context))

    def _with(self, samples: ScoredSamples, context: RunContext) -> dict[str, float]:
        known_b = (samples.source_b == SOURCES["sampled"]) & samples.valid_b
        reward_n = samples.scores.reward_b[known_b]
        before = {**NOTHING, **context.state_of(self)}
        if not len(reward_n):
            return before
        mean = float(reward_n.mean())
        now = {"count": float(len(reward_n)), "mean": mean, "squares": float(((reward_n - mean) ** 2).sum())}
        return merged(before, now)

    @override
    def words(self) -> str:
        return self.says


def merged(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """Return count, mean and sum of squared deviations of two sets of numbers together."""
    count, gap = first["count"] + second["count"], second["mean"] - first["mean"]
    share = second["count"] / count if count else 0.0
    squares = first["squares"] + second["squares"] + gap**2 * first["count"] * share
    return {"count": count, "mean": first["mean"] + gap * share, "squares": squares}
