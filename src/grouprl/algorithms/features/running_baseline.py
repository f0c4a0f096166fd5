"""A running mean of rewards as baseline, one for each agent."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from grouprl.algorithms.data_part import Desk, Exploration
from grouprl.algorithms.part import part
from grouprl.core.batch import SOURCES, Batch
from grouprl.rollout.samples import Collected


@part("explore")
class RunningBaseline(Exploration):
    """Give `past.baseline`: the running mean of each agent's rewards before this step (RAE).

    b ← d·b + (1 - d)·R reward by reward, in the order of the rows; an agent that never acted has 0. The rows stay.
    """

    decay: Annotated[float, Field(ge=0, lt=1)] = 0.95

    def __call__(self, collected: Collected, desk: Desk) -> Collected:
        """Change nothing."""
        return collected

    def fill(self, batch: Batch, collected: Collected, desk: Desk) -> Batch:
        """Set `past.baseline`."""
        known = self._known(desk)
        found = [known.get(agent, 0.0) for agent in self._agents(collected)]
        return batch.replace(past={**batch.past, "baseline": torch.tensor(found, dtype=batch.dtype)})

    def observe(self, collected: Collected, judged: Batch | None, desk: Desk) -> None:
        """Move the baselines by this step's rewards."""
        known = self._known(desk)
        drawn_b = collected.source_b == SOURCES["drawn"]
        rows = zip(self._agents(collected), collected.scores.reward_b.tolist(), drawn_b.tolist(), strict=True)
        for agent, reward, drawn in rows:
            if drawn:
                known[agent] = self.decay * known.get(agent, 0.0) + (1 - self.decay) * reward

    def _agents(self, collected: Collected) -> list[int]:
        return collected.extras.get("agent_b", np.zeros(len(collected), dtype=np.int64)).tolist()

    def _known(self, desk: Desk) -> dict[int, float]:
        return desk.store(self).setdefault("baselines", {})

    def supplies(self) -> tuple[str, ...]:
        """Batch fields."""
        return ("past.baseline",)

    def words(self) -> str:
        """Describe."""
        return f"keep a running mean of each agent's rewards (decay {self.decay:g})"

    def formula(self) -> str:
        """Formula."""
        return f"b_agent ← {self.decay:g}·b_agent + {1 - self.decay:.4g}·R"
