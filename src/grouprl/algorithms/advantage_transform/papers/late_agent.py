"""An agent that begins to learn later than the others."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.numbers import Whole


@part("advantage_transform")
class LateAgent(AdvantageTransform):
    """Rows of agent number `agent` have no advantage before step `start`, from 0 (search self-play's warm-up)."""

    agent: Whole = 0
    start: Whole = 5
    says = "agent {agent} learns from step {start} on"
    equation = "A ← 0 for agent {agent} before step {start}"
    reads = ("agent_b", "step")
    plain = "adv_bt = torch.where((step < {start}) & (agent_b == {agent})[:, None], 0, adv_bt)"

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Zero the agent's rows in early steps."""
        if batch.need("step", self.name) >= self.start:
            return adv_bt
        return torch.where((batch.need("agent_b", self.name) == self.agent)[:, None], 0, adv_bt)

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if `start` is 0 or the task has no such agent."""
        if self.start == 0:
            return [f"{self.name} has no effect: start is 0"]
        return [] if self.agent < run.agents else [f"{self.name} has no effect: the task has no agent {self.agent}"]
