"""Balance of flows along a trajectory: a GFlowNet's losses, by flows at fixed log-probs."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.returns import discounted, token_rewards
from grouprl.algorithms.critic.critic import Critic
from grouprl.algorithms.flow import Lambda, imbalance, stretches, weights
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("critic")
class FlowLoss(Critic):
    """The flow's part of sub-trajectory balance, log-probs held fixed: log F(s_t) is the critic's value.

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
