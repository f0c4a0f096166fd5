"""Imbalance of flows along a trajectory, which a GFlowNet's objective and its critic share."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from grouprl.algorithms.advantage.returns import token_rewards
from grouprl.core.batch import Batch

Lambda = Annotated[float, Field(ge=0)] | None
"""Weight of a stretch of n steps is λ^(n-1); None: only the whole trajectory counts."""


def imbalance(logp_bt: Tensor, flow_bt: Tensor, batch: Batch, lam: Lambda) -> Tensor:
    """Return [B] the weighted mean of the squared imbalance over the stretches i < j of each row.

    The imbalance is log F(s_i) + Σ_{i≤t<j} (log π(a_t) - r_t) - log F(s_j) = u_i - u_j with u_t = log F(s_t) -
    Σ_{s<t} (log π(a_s) - r_s), and log F = 0 at the end, where the reward has been paid.
    """
    paid_bt = torch.where(batch.active_bt, logp_bt - token_rewards(batch), 0)
    before_bt = paid_bt.cumsum(1) - paid_bt
    level_bt = torch.where(batch.active_bt, flow_bt - before_bt, 0)
    level_bn = torch.cat([level_bt, -paid_bt.sum(1, keepdim=True)], 1)
    weight_bnn = _stretches(batch.active_bt, lam).to(level_bn)
    apart_bnn = level_bn[:, :, None] - level_bn[:, None]
    return (weight_bnn * apart_bnn.square()).sum((1, 2)) / weight_bnn.sum((1, 2)).clamp(min=1e-30)


def _stretches(active_bt: Tensor, lam: Lambda) -> Tensor:
    """Return [B,T+1,T+1] the weight of the stretch from each state to each later one; the end is the last."""
    end_b1 = torch.ones_like(active_bt[:, :1])
    there_bn = torch.cat([active_bt, end_b1], 1)
    rank_bn = (there_bn.cumsum(1) - 1).double()
    steps_bnn = rank_bn[:, None] - rank_bn[:, :, None]
    real_bnn = there_bn[:, :, None] & there_bn[:, None] & (steps_bnn > 0)
    if lam is None:
        return (real_bnn & (steps_bnn == rank_bn[:, -1:, None])).double()
    return torch.where(real_bnn, lam ** (steps_bnn - 1).clamp(min=0), 0.0)


def stretches(lam: Lambda) -> str:
    """Say which stretches count."""
    if lam is None:
        return "of whole trajectories"
    return "of single steps" if lam == 0 else f"of all stretches, weight {lam:g}^(steps - 1)"


def weights(lam: Lambda) -> str:
    """Return the weights in symbols."""
    if lam is None:
        return "[i=0, j=T]"
    return "[j=i+1]" if lam == 0 else f"{lam:g}^(j-i-1)"
