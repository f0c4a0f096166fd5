"""Agents that learn in turn (Hi-Agent)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.filter.filter import Filter, drop
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch


@part("filter")
class AgentsInTurn(Filter):
    """Agents learn in turn, each for `every` steps: rows of the others leave the loss, not the statistics (Hi-Agent).

    Step s is that of agent number (s // every) mod `agents`.
    """

    every: Annotated[int, Field(ge=1)] = 1
    agents: Annotated[int, Field(ge=2)] = 2
    equation = "only rows of agent (step // {every}) mod {agents}"
    reads = ("agent_b", "step")
    plain = "active_bt = active_bt & (agent_b == step // {every} % {agents})[:, None]"

    def __call__(self, batch: Batch) -> Batch:
        """Drop the rows of agents whose turn it is not."""
        learning = (batch.need("step", self.name) // self.every) % self.agents
        return drop(batch, batch.need("agent_b", self.name) != learning, from_statistics=False)

    @override
    def words(self) -> str:
        return f"agents learn in turn, {self.every} step{'s' if self.every > 1 else ''} each, while the others rest"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that some steps train no agent if the task has fewer agents than expected."""
        if run.agents == self.agents:
            return []
        return [
            f"{self.name} expects {self.agents} agents, and the task has {run.agents}: some steps train no agent"
        ] * (run.agents < self.agents)
