"""Credit for single turns of an answer beside its outcome."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from grouprl import levels
from grouprl.batch import Batch
from grouprl.parts.advantage import Advantage
from grouprl.parts.part import part


@part("advantage")
class TurnAndOutcome(Advantage):
    """MT-GRPO: the first turn earns its own reward besides the outcome's, each judged in the group (arXiv:2505.11821).

    A_O and A_T are the outcome `reward_b` and the first turn's reward `turn_reward_bs[:, 0]`, both minus their group's
    mean over its sample standard deviation + eps. Tokens of the first turn (before the first tool result) get
    A_O + `turn_weight`·A_T, later ones A_O. A row without a second turn called no tool: all its tokens get the
    advantage of the sum of both rewards.
    """

    turn_weight: Annotated[float, Field(ge=0)] = 1.0
    eps: Annotated[float, Field(ge=0)] = 1e-4

    def __call__(self, batch: Batch) -> Tensor:
        """Return advantages [B,T] by turn."""
        turn_bt, outcome_b = batch.need("turn_bt", self.name), batch.total_reward_b
        first_b = batch.need("turn_reward_bs", self.name)[:, 0]
        outcome_adv_b, turn_adv_b, sum_adv_b = (
            self._judge(x, batch) for x in (outcome_b, first_b, outcome_b + first_b)
        )
        called_b = (torch.where(batch.mask_bt, turn_bt, 0) > 0).any(1)
        early_bt = turn_bt == 0
        by_turn_bt = outcome_adv_b[:, None] + self.turn_weight * turn_adv_b[:, None] * early_bt
        return torch.where(called_b[:, None], by_turn_bt, sum_adv_b[:, None]) * batch.mask_bt

    def _judge(self, value_b: Tensor, batch: Batch) -> Tensor:
        weight_b = batch.stats_b.to(batch.dtype)
        return levels.relative(value_b, batch.group_b, scale="sample_std", eps=self.eps, weight_n=weight_b)

    def needs(self) -> tuple[str, ...]:
        """Batch fields."""
        return ("turn_bt", "turn_reward_bs")

    def words(self) -> str:
        """Describe."""
        return (
            f"outcome relative to its group; tokens of the first turn add {self.turn_weight:g} times the turn's own "
            "reward relative to its group; answers that called no tool are judged by the sum"
        )

    def formula(self) -> str:
        """Return the formula."""
        return f"A_t = A_O + {self.turn_weight:g}·A_T in the first turn, A_O after it"
