"""A drift penalty in place of a clip, as found by meta-learning: Discovered Policy Optimisation."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Objective, idle_ratio
from grouprl.algorithms.objective.ratio import held, log_ratio
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.numbers import Positive


@part("objective")
class DiscoveredDrift(Objective):
    """-(ρ·A - f(ρ, A)): f holds the ratio where the objective gains by moving it (DPO, arXiv:2210.05639, section 5).

    f = max(0, (ρ-1)A - α·tanh((ρ-1)A/α)) for A ≥ 0, and max(0, log(ρ)A - β·tanh(log(ρ)A/β)) for A < 0. f and its slope
    are 0 at ρ = 1; the gradient passes through both terms.
    """

    alpha: Positive = 2.0
    beta: Positive = 0.6
    reads = ("old_bt",)
    says = "push each token's ratio by its advantage, less a drift that grows once it has moved that way"
    equation = (
        "-(ρ·A - f),  f = max(0, x - c·tanh(x/c)),  x = (ρ-1)A, c = {alpha:g} if A ≥ 0, x = log(ρ)A, c = {beta:g}"
    )

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return f(ρ, A) - ρ·A."""
        adv_bt = batch.need("advantage_bt", self.name)
        log_bt = held(log_ratio(logp_bt, batch, "token"))
        gain_bt = torch.where(adv_bt >= 0, torch.expm1(log_bt) * adv_bt, log_bt * adv_bt)
        scale_bt = torch.where(adv_bt >= 0, torch.full_like(adv_bt, self.alpha), torch.full_like(adv_bt, self.beta))
        drift_bt = (gain_bt - scale_bt * torch.tanh(gain_bt / scale_bt)).clamp(min=0)
        return TokenLoss(drift_bt - log_bt.exp() * adv_bt, {"drift": drift_bt.detach()})

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return f"""log_bt = held(torch.where(active_bt, logp_bt - old_bt, 0))
gain_bt = torch.where(adv_bt >= 0, torch.expm1(log_bt), log_bt) * adv_bt
scale_bt = torch.where(adv_bt >= 0, torch.full_like(adv_bt, {self.alpha!r}), {self.beta!r})
drift_bt = (gain_bt - scale_bt * torch.tanh(gain_bt / scale_bt)).clamp(min=0)
loss_bt = drift_bt - log_bt.exp() * adv_bt"""

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the drift has no effect if the ratio is always 1."""
        return idle_ratio(run, "old", "the drift")
