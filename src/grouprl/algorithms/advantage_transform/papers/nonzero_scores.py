"""The factor of verl's GPG, which counts completions with a score where the paper counts those with a signal."""

from __future__ import annotations

from torch import Tensor

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("advantage_transform")
class NonzeroScores(AdvantageTransform):
    """Multiply advantages by B/#{i: R_i ≠ 0} (verl's α of GPG; the paper's, arXiv:2504.02546, is `valid_fraction`)."""

    says = "advantages scaled up by the share of completions whose reward is 0"
    equation = "A ← A · B / #(R ≠ 0)"
    plain = "adv_bt = adv_bt * counts_b.sum().to(adv_bt.dtype) / (counts_b & (reward_b != 0)).sum().clamp(min=1)"

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return α·A with α = B over the number of rewards that are not 0."""
        stats_b = batch.stats_b
        scored = (stats_b & (batch.total_reward_b != 0)).sum().clamp(min=1)
        return adv_bt * (stats_b.sum().to(batch.dtype) / scored)
