"""Weights and shifts of rows that another policy sampled: RED, AsymRE, CPGD."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantages.normalize import Normalize
from grouprl.algorithms.filters.selection import Selection
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objectives.objective import idle_ratio
from grouprl.algorithms.objectives.ratio import LOG_LIMIT, log_ratio
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.regularizers.regularize import Regularizer
from grouprl.algorithms.token_weights.weighting import Weighting
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


@part("regularize")
class PolicyDrift(Regularizer):
    """α·min(sg[ρ]-1, cap)·log π: the gradient of KL(π_old || π) by k3, its weight capped (CPGD, arXiv:2505.12504)."""

    coef: NonNegative = 1e-3
    cap: Annotated[float, Field(gt=0)] | None = 2.0
    reads = ("old_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """α·min(ρ_t - 1, cap)·log π(y_t), ρ detached."""
        excess_bt = torch.where(batch.active_bt, log_ratio(logp_bt.detach(), batch).expm1(), 0)
        weight_bt = excess_bt if self.cap is None else excess_bt.clamp(max=self.cap)
        return TokenLoss(self.coef * weight_bt * logp_bt, {})

    @override
    def words(self) -> str:
        cap = "" if self.cap is None else f", the weight at most {self.cap:g}"
        return f"{self.coef:g} times the drift from the old policy: tokens are pulled back by how far ρ left 1{cap}"

    @override
    def formula(self) -> str:
        weight = "(ρ_t - 1)" if self.cap is None else f"min(ρ_t - 1, {self.cap:g})"
        return f"+ {self.coef:g} · sg[{weight}]·log π(y_t)"

    def idle(self, run: RunFacts) -> list[str]:
        """No coefficient or no distance."""
        if self.coef == 0:
            return ["the policy drift has no effect: its coefficient is 0"]
        return idle_ratio(run, "old", "the policy drift")


@part("advantage_transform")
class Shift(Normalize):
    """Add a constant to every advantage: the baseline is lowered by it (AsymRE, arXiv:2506.20520, δ = -amount).

    Above 0 also completions as good as the average are imitated, and good ones push more than bad ones pull.
    """

    amount: float = 0.1
    says = "every advantage raised by {amount:g} (the baseline lies that much lower)"
    equation = "A ← A + {amount:g}"

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """A + amount on rows that count in statistics."""
        return torch.where(batch.active_bt & batch.stats_b[:, None], adv_bt + self.amount, adv_bt)


@part("token_weight")
class AdvantageTilt(Weighting):
    """exp(A/τ): good completions weigh more, bad ones less (RED-Weight, arXiv:2509.24203); exponent within ±20."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    says = "weigh every token by exp(advantage / {temperature:g})"
    equation = "× exp(A/{temperature:g})"

    def __call__(self, batch: Batch) -> Tensor:
        """exp(A_t/τ)."""
        return (batch.need("advantage_bt", self.name) / self.temperature).clamp(-LOG_LIMIT, LOG_LIMIT).exp()


@part("filter")
class BalanceNegatives(Selection):
    """Where a group has more completions below its mean than others, drop so many of them that both are equal
    (RED-Drop).

    Dropped completions leave the group statistics and get advantage 0, but stay in the denominators, as in the authors'
    code (arXiv:2509.24203). Which are dropped is sampled from the digits of their mean log-prob, so that a batch in
    another order, or cut in other pieces, drops the same ones.
    """

    says = "leave out completions below their group's mean, sampled at random, until they are no more than the others"
    reads = ("old_bt",)

    def __call__(self, batch: Batch) -> Batch:
        """Take surplus negatives out of the statistics."""
        reward_b, id_b, stats_b = batch.total_reward_b, batch.group_b, batch.stats_b
        weight_b = stats_b.to(batch.dtype)
        below_b = reward_b < levels.mean(reward_b, id_b, weight_b)
        below_b &= stats_b & levels.differs(reward_b, id_b, weight_b)
        positives_b = levels.total((stats_b & ~below_b).to(batch.dtype), id_b)
        lot_b = torch.where(below_b, self._lots(batch), 2.0)
        return batch.replace(stat_b=stats_b & ~(below_b & (levels.rank(lot_b, id_b) >= positives_b)))

    def _lots(self, batch: Batch) -> Tensor:
        """[B] numbers in [0, 1), from digits of the mean log-prob that rounding does not reach."""
        old_bt = torch.where(batch.mask_bt, batch.need("old_bt", self.name), 0)
        return (997 * old_bt.sum(1) / batch.length_b.clamp(min=1)).frac().abs()

    def idle(self, run: RunFacts) -> list[str]:
        """A lone completion is never below the mean, nor are more than half of two."""
        return ["balance_negatives has no effect: groups hold fewer than 3 completions"] if run.group_size < 3 else []
