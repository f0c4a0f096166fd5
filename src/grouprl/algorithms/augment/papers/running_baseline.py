"""A running mean of rewards as baseline, one for each agent."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import part
from grouprl.core.batch import SOURCES, Batch
from grouprl.records.samples import ScoredSamples


@part("augment")
class RunningBaseline(Augmentation):
    """Give `past.baseline`: the running mean of each agent's rewards before this step (RAE).

    b ← d·b + (1 - d)·R reward by reward, in the order of the rows; an agent that never acted has 0. The rows are
    unchanged.
    """

    decay: Annotated[float, Field(ge=0, lt=1)] = 0.95
    says = "keep a running mean of each agent's rewards (decay {decay:g})"
    fills = ("past.baseline",)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows unchanged."""
        return samples

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `past.baseline`."""
        known = self._known(context)
        found = [known.get(agent, 0.0) for agent in self._agents(samples)]
        return batch.replace(past={**batch.past, "baseline": torch.tensor(found, dtype=batch.dtype)})

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Move the baselines towards this step's rewards."""
        known = self._known(context)
        sampled_b = samples.source_b == SOURCES["sampled"]
        rows = zip(self._agents(samples), samples.scores.reward_b.tolist(), sampled_b.tolist(), strict=True)
        for agent, reward, sampled in rows:
            if sampled:
                known[agent] = self.decay * known.get(agent, 0.0) + (1 - self.decay) * reward

    def _agents(self, samples: ScoredSamples) -> list[int]:
        return samples.extras.get("agent_b", np.zeros(len(samples), dtype=np.int64)).tolist()

    def _known(self, context: RunContext) -> dict[int, float]:
        return context.state_of(self).setdefault("baselines", {})

    @override
    def formula(self) -> str:
        return f"b_agent ← {self.decay:g}·b_agent + {1 - self.decay:.4g}·R"
