"""Balance of flows along a trajectory: a GFlowNet's losses, which see log-probs and a learned flow of each state."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.returns import discounted, token_rewards
from grouprl.algorithms.critic.critic import Critic
from grouprl.algorithms.losses import RowLoss, TokenLoss
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.part import part
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


@part("objective")
class FlowBalance(Objective):
    """The policy's part of sub-trajectory balance (Madan et al. 2023, arXiv:2209.12782, eq. 5), flows held fixed.

    λ = 0 is detailed balance (Bengio et al. 2023, arXiv:2111.09266), None trajectory balance (Malkin et al. 2022,
    arXiv:2201.13259) with log Z = log F(s_0). The rewards of steps are log P_B, the last one log R(x) besides.
    """

    lam: Lambda = 0.9
    reads = ("value_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> RowLoss:
        """Return the imbalance of each row, differentiable in `logp_bt`."""
        return RowLoss(imbalance(logp_bt, batch.need("value_bt", self.name), batch, self.lam))

    @override
    def words(self) -> str:
        return f"balance the flow {stretches(self.lam)}: log-probs against a learned log flow and log rewards"

    @override
    def formula(self) -> str:
        return f"mean_{{i<j}} {weights(self.lam)}(u_i - u_j)²,  u_t = log F_t - Σ_{{s<t}} (log π_s - r_s)"

    @override
    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows without an action."""
        return ~batch.active_bt.any(1)

    @override
    def code(self) -> str:
        weight = {True: "(steps_bnn == rank_bn[:, -1:, None]) * 1.0"}.get(
            self.lam is None, f"{self.lam!r} ** (steps_bnn - 1).clamp(min=0)"
        )
        return f"""last_bt = mask_bt & (mask_bt.flip(1).cumsum(1).flip(1) == 1)
paid_bt = torch.where(active_bt, logp_bt - last_bt * reward_b[:, None] - token_reward_bt, 0)
level_bt = torch.where(active_bt, value_bt - paid_bt.cumsum(1) + paid_bt, 0)
level_bn = torch.cat([level_bt, -paid_bt.sum(1, keepdim=True)], 1)
there_bn = torch.cat([active_bt, torch.ones_like(active_bt[:, :1])], 1)
rank_bn = (there_bn.cumsum(1) - 1).to(level_bn.dtype)
steps_bnn = rank_bn[:, None] - rank_bn[:, :, None]
weight_bnn = (there_bn[:, :, None] & there_bn[:, None] & (steps_bnn > 0)) * ({weight})
apart_bnn = (level_bn[:, :, None] - level_bn[:, None]).square()
loss_b = (weight_bnn * apart_bnn).sum((1, 2)) / weight_bnn.sum((1, 2)).clamp(min=1e-30)
loss_bt = loss_b[:, None] * active_bt"""


@part("critic")
class FlowLoss(Critic):
    """The flow's part of the same loss, log-probs held fixed: log F(s_t) is the critic's value.

    In one optimiser step the gradients of both parts are that of the whole squared imbalance.
    """

    lam: Lambda = 0.9
    reads = ("old_bt",)

    def targets(self, batch: Batch) -> Tensor:
        """Return [B,T] what each row says of log F(s_t): the sum of r - log π from t on."""
        old_bt = batch.need("old_bt", self.name)
        return discounted(token_rewards(batch) - old_bt, batch.mask_bt, torch.ones_like(batch.reward_b))

    def __call__(self, value_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return the imbalance of each row, spread over its tokens, differentiable in `value_bt`."""
        error_bt = (value_bt - batch.need("return_bt", self.name)).square()
        found = imbalance(batch.need("old_bt", self.name), value_bt, batch, self.lam)
        return TokenLoss(batch.broadcast(found), {"value_error": error_bt.detach()})

    @override
    def words(self) -> str:
        return f"log flows that balance {stretches(self.lam)}"

    @override
    def formula(self) -> str:
        return f"mean_{{i<j}} {weights(self.lam)}(u_i - u_j)² by log F"


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
