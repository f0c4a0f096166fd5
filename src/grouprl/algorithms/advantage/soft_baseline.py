"""Advantages over the soft value of a prompt: β·log mean exp(R/β)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.objective.ratio import LOG_LIMIT
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.numbers import Positive


@part("advantage")
class SoftBaseline(Advantage):
    """Reward minus the soft value of the prompt, V = β·log mean_g exp(R/β) (OPMD; V* of A*-PO, arXiv:2505.20686).

    β→∞ gives the mean, β→0 the maximum of the group. `under="ref"` weighs completion j by π_ref(y_j)/π_old(y_j),
    normalised in the group, so that the mean is one over the reference's completions though the policy sampled them.
    """

    beta: Positive = 0.5
    under: Literal["old", "ref"] = "old"

    def __call__(self, batch: Batch) -> Tensor:
        """Return A_i = R_i - β·log Σ_j w_j exp(R_j/β)."""
        reward_b, id_b, weight_b = batch.total_reward_b, batch.group_b, batch.stats_b.to(batch.dtype)
        if self.under == "ref":
            weight_b = weight_b * self._importance(batch, weight_b)
        top_b = levels.extreme(reward_b, id_b, batch.stats_b.to(batch.dtype), largest=True)
        scaled_b = ((reward_b - top_b) / self.beta).clamp(max=0).exp()
        value_b = top_b + self.beta * levels.mean(scaled_b, id_b, weight_b).clamp(min=1e-30).log()
        return batch.broadcast((reward_b - value_b) * batch.stats_b)

    def _importance(self, batch: Batch, weight_b: Tensor) -> Tensor:
        """Return [B] π_ref/π_old of whole completions over the group's largest, at least exp(-20)."""
        gap_bt = batch.need("ref_bt", self.name) - batch.need("old_bt", self.name)
        log_b = torch.where(batch.mask_bt, gap_bt, 0).sum(1)
        return (log_b - levels.extreme(log_b, batch.group_b, weight_b, largest=True)).clamp(-LOG_LIMIT, 0).exp()

    @override
    def needs(self) -> tuple[str, ...]:
        return ("ref_bt", "old_bt") if self.under == "ref" else ()

    @override
    def words(self) -> str:
        whose = "" if self.under == "old" else ", each weighted by its probability under the reference"
        return f"reward minus the soft mean of its group's rewards (temperature {self.beta:g}){whose}"

    @override
    def formula(self) -> str:
        if self.under == "old":
            return f"A = R - {self.beta:g}·log mean_g exp(R/{self.beta:g})"
        return f"A = R - {self.beta:g}·log Σ_j w_j exp(R_j/{self.beta:g}),  w_j ∝ π_ref(y_j)/π_old(y_j)"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, which have nothing to be compared with."""
        if run.group_size == 1:
            return [
                "soft_baseline estimates a prompt's value from its completions, but batch.group_size is 1. Use "
                "batch.group_size of 2 or more"
            ]
        return []
