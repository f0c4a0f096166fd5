"""A mean over each agent's completions (MAH-DPO)."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.aggregate.aggregate import Aggregate, counted
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("aggregate")
class AgentMean(Aggregate):
    """Mean over a completion's tokens, then over each agent's completions, then over agents that have any.

    An agent weighs the same however many completions it has; one without any does not count (MAH-DPO,
    arXiv:2510.01167, whose agents are objectives). Rows without agents are one agent's.
    """

    says = "mean over each agent's completions, then over the agents that have any"
    equation = "1/#a · Σ_a 1/n_a · Σ_{{i∈a}} 1/|y_i| · Σ_t"
    plain = """rows_b = active_bt.any(1)
agents = len(torch.unique(agent_b[rows_b]))
rows_of_b = ((agent_b[:, None] == agent_b) & rows_b).sum(1)
weight_bt = active_bt.to(adv_bt.dtype) / active_bt.sum(1, keepdim=True).clamp(min=1)
weight_bt = weight_bt / rows_of_b.clamp(min=1)[:, None] / max(agents, 1)"""

    def __call__(self, batch: Batch) -> Tensor:
        """Return w_t = 1 / (agents · n_a · |y|)."""
        active_bt, rows_b = counted(batch), batch.active_bt.any(1)
        agent_b = torch.zeros_like(batch.group_b) if batch.agent_b is None else batch.agent_b
        rows_of_b = levels.total(rows_b.to(batch.dtype), agent_b).clamp(min=1)
        agents = max(len(torch.unique(agent_b[rows_b])), 1)
        return active_bt / active_bt.sum(1, keepdim=True).clamp(min=1) / rows_of_b[:, None] / agents

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part equals sequence_mean if there is one agent."""
        return ["agent_mean is the same as sequence_mean: the task has one agent"] if run.agents == 1 else []
