"""Advantages that lead to a given return, whether from above or from below (COUNTERPOL)."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("advantage_transform")
class TowardReturn(AdvantageTransform):
    """Multiply advantages by 2·(target - J): the policy gradient of -(J - target)², J the mean return of the policy.

    J is estimated from the other rows of the step, so that the product of the two estimates is unbiased. Below the
    target better rows are pushed up, above it down; a row alone in its step has weight 0. Source: Deshmukh et al.
    2023 (COUNTERPOL). *Differs from the paper*, which estimates J and its gradient from the same rows.
    """

    target: float = 0.0
    says = "times twice the distance of the mean reward of the step's other rows from {target:g}"
    equation = "A ← 2·({target:g} - mean of the other rows' R)·A"
    plain = (
        "own_b = counts_b.to(reward_b.dtype)\n"
        "left_b = own_b.sum() - own_b\n"
        "mean_b = ((own_b * reward_b).sum() - own_b * reward_b) / left_b.clamp(min=1)\n"
        "mean_b = torch.where(left_b > 0, mean_b, {target!r})\n"
        "adv_bt = adv_bt * (2 * ({target!r} - mean_b))[:, None]"
    )

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return 2·(target - J_{-i})·A_i, with J_{-i} the mean over the other rows that count in statistics."""
        return adv_bt * (2 * (self.target - others_mean(batch, self.target)))[:, None]


def others_mean(batch: Batch, alone: float) -> Tensor:
    """Return [B] the mean reward of the other rows that count in statistics; `alone` where there are none."""
    own_b = batch.stats_b.to(batch.dtype)
    reward_b = own_b * batch.total_reward_b
    left_b = own_b.sum() - own_b
    return torch.where(left_b > 0, (reward_b.sum() - reward_b) / left_b.clamp(min=1), alone)
