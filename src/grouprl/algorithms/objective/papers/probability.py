"""A policy gradient through probabilities instead of their logarithms (T-SPMO)."""

from __future__ import annotations

from torch import Tensor

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Surrogate
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("objective")
class Probability(Surrogate):
    """The advantage times the probability itself, not its logarithm: -A_t·π(y_t)."""

    says = "push each token's probability (not its log) by its advantage, without ratio or clip"
    equation = "-A_t · π(y_t)"
    plain = "loss_bt = -adv_bt * torch.where(active_bt, logp_bt, 0).exp()"

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -A_t·π(y_t)."""
        return TokenLoss(-batch.need("advantage_bt", self.name) * logp_bt.exp(), {})
