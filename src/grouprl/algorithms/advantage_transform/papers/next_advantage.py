"""Advantages of those whose choice takes effect one action later (AMI)."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("advantage_transform")
class NextAdvantage(AdvantageTransform):
    """A_t ← A_{t+1} in rows of the agents from number `first` on, and 0 at their last action (AMI, arXiv:2302.03322).

    What they choose is a target for what others do next, so the advantage of the next action judges it.
    """

    first: Annotated[int, Field(ge=0)] = 2
    says = "agents from number {first} on are judged by the advantage of their next action"
    equation = "A_t ← A_{{t+1}} for agents from {first} on"
    reads = ("agent_b",)
    plain = (
        "next_bt = torch.cat([adv_bt[:, 1:], torch.zeros_like(adv_bt[:, :1])], 1)\n"
        "adv_bt = torch.where((agent_b >= {first})[:, None], next_bt, adv_bt)"
    )

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return the advantages, those of the later agents one action earlier."""
        next_bt = torch.cat([adv_bt[:, 1:], torch.zeros_like(adv_bt[:, :1])], 1)
        late_b = batch.need("agent_b", self.name) >= self.first
        return torch.where(late_b[:, None], next_bt, adv_bt)
