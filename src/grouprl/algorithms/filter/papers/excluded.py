"""Rows or spans that are sampled but not learned from: rows of one agent, and text between two signs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage.per_agent import one_agent
from grouprl.algorithms.filter.filter import Filter, drop
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch


@part("filter")
class DropAgent(Filter):
    """Leave the rows of agent number `agent` out of the loss and of statistics: it acts, but is not trained.

    CANOE uses this for its second generation, which only judges the first one.
    """

    agent: Annotated[int, Field(ge=0)] = 1
    says = "leave what agent {agent} writes out of the loss"
    reads = ("agent_b",)

    def __call__(self, batch: Batch) -> Batch:
        """Drop the agent's rows."""
        return drop(batch, batch.need("agent_b", self.name) == self.agent, from_statistics=True)

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task in which the agent is the only one."""
        alone = (
            f"drop_agent leaves out agent {self.agent}, the only agent of the task: nothing would be learned. Remove it"
        )
        return [alone] if run.agents == 1 and self.agent == 0 else []

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if the task has no such agent."""
        return one_agent(self.name, run) if self.agent > 0 else []


@part("filter")
class DropSpan(Filter):
    """Leave the tokens between two signs out of the loss, the signs included (`marks.span`): SSRL's information mask.

    Text that a completion makes up in place of a tool's result is then not imitated; only its use is. A span that is
    never closed counts as ordinary text. `begin` and `end` are the signs that a run looks for in the completions.
    """

    begin: Annotated[str, Field(min_length=1)] = "<information>"
    end: Annotated[str, Field(min_length=1)] = "</information>"
    says = "leave what stands from '{begin}' to '{end}' out of the loss, also from the denominators"
    reads = ("marks.span",)

    @property
    def signs(self) -> tuple[str, str]:
        """Return the signs with which a span begins and ends."""
        return self.begin, self.end

    def __call__(self, batch: Batch) -> Batch:
        """Drop the tokens of spans."""
        return batch.replace(loss_mask_bt=batch.active_bt & ~batch.need("marks.span", self.name))
