"""An entropy bonus for a single agent of a team (CPMobius)."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import part
from grouprl.algorithms.regularize.regularize import EntropyBonus
from grouprl.core.batch import Batch
from grouprl.core.numbers import Whole


@part("regularize")
class AgentEntropy(EntropyBonus):
    """-c·H_t on the tokens of agent number `agent` alone (CPMobius's coach)."""

    coef: Annotated[float, Field(ge=0)] = 0.01
    agent: Whole = 1
    says = "an entropy bonus of weight {coef:g} per token of agent {agent}"
    equation = "- {coef:g} · H_t · 1[agent {agent}]"
    reads = ("agent_b",)

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return -c·H_t where the row is the agent's."""
        whole = super().__call__(logp_bt, batch, entropy_bt)
        own_b = batch.need("agent_b", self.name) == self.agent
        return TokenLoss(torch.where(own_b[:, None], whole.loss_bt, 0), whole.metrics)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        if self.aggregate:
            return ""
        own = f"torch.where((agent_b == {self.agent})[:, None], entropy_bt, 0)"
        return f"loss = loss - {self.coef!r} * (weight_bt * {own}).sum()"

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows of other agents."""
        return (batch.need("agent_b", self.name) != self.agent) | super().zero_rows(batch)
