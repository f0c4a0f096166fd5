"""Balance of flows along a trajectory: a GFlowNet's losses, by log-probs at fixed flows."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.flow import Lambda, imbalance, stretches, weights
from grouprl.algorithms.losses import RowLoss
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("objective")
class FlowBalance(Objective):
    """The policy's part of sub-trajectory balance (Madan et al. 2023, arXiv:2209.12782, eq. 5), flows held fixed.

    λ = 0 is detailed balance (Bengio et al. 2023, arXiv:2111.09266), None trajectory balance (Malkin et al. 2022,
    arXiv:2201.13259) with log Z = log F(s_0). The rewards of steps are log P_B, the last one log R(x) besides.
    """

    lam: Lambda = 0.9
    proportional = True
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
