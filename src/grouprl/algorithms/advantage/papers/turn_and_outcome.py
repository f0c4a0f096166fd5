"""Credit for a turn's reward and for the episode's outcome (MT-GRPO)."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.part import part
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


@part("advantage")
class TurnAndOutcome(Advantage):
    """MT-GRPO: the first turn earns its own reward besides the outcome's, each judged in the group (arXiv:2505.11821).

    A_O and A_T are the outcome (what the completion earned besides its first turn) and the first turn's reward
    `turn_reward_bs[:, 0]`, both minus their group's mean over its sample standard deviation + eps. Tokens of the first
    turn (before the first tool result) get A_O + `turn_weight`·A_T, later ones A_O. A row without a second turn called
    no tool: all its tokens get the advantage of the sum of both rewards.
    """

    turn_weight: NonNegative = 1.0
    eps: NonNegative = 1e-4
    says = (
        "outcome relative to its group; tokens of the first turn add {turn_weight:g} times the turn's own reward "
        "relative to its group; completions that called no tool get the advantage of the sum"
    )
    equation = "A_t = A_O + {turn_weight:g}·A_T in the first turn, A_O after it"
    reads = ("turn_bt", "turn_reward_bs")
    plain = (
        "first_b = turn_reward_bs[:, 0]\n"
        "rest_b = standardised(reward_b - first_b, same_bb, {eps!r})\n"
        "turn_b = standardised(first_b, same_bb, {eps!r})\n"
        "whole_b = standardised(reward_b, same_bb, {eps!r})\n"
        "called_b = (mask_bt & (turn_bt > 0)).any(1)\n"
        "by_turn_bt = rest_b[:, None] + {turn_weight!r} * turn_b[:, None] * (turn_bt == 0)\n"
        "adv_bt = torch.where(called_b[:, None], by_turn_bt, whole_b[:, None]) * (mask_bt & counts_b[:, None])"
    )

    def __call__(self, batch: Batch) -> Tensor:
        """Return advantages [B,T] by turn."""
        turn_bt, reward_bs = batch.need("turn_bt", self.name), batch.need("turn_reward_bs", self.name)
        first_b = reward_bs[:, 0]
        outcome_b = batch.total_reward_b - first_b
        outcome_adv_b, turn_adv_b, sum_adv_b = (
            self._normalised(x, batch) for x in (outcome_b, first_b, outcome_b + first_b)
        )
        called_b = (torch.where(batch.mask_bt, turn_bt, 0) > 0).any(1)
        early_bt = turn_bt == 0
        by_turn_bt = outcome_adv_b[:, None] + self.turn_weight * turn_adv_b[:, None] * early_bt
        return torch.where(called_b[:, None], by_turn_bt, sum_adv_b[:, None]) * batch.mask_bt

    def _normalised(self, value_b: Tensor, batch: Batch) -> Tensor:
        weight_b = batch.stats_b.to(batch.dtype)
        return levels.relative(value_b, batch.group_b, scale="sample_std", eps=self.eps, weight_n=weight_b)
