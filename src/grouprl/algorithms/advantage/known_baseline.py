"""Advantages from what was learnt before training: known values of prompts."""

from __future__ import annotations

from torch import Tensor

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("advantage")
class KnownBaseline(Advantage):
    """Reward minus a value of the prompt that was estimated before training (A*-PO, arXiv:2505.20686)."""

    says = "reward minus the value of its prompt, estimated once before training"
    equation = "A = R - V*"
    reads = ("past.baseline",)
    plain = 'adv_bt = ((reward_b - past["baseline"]) * counts_b)[:, None] * mask_bt'

    def __call__(self, batch: Batch) -> Tensor:
        """Return A_i = R_i - V*."""
        baseline_b = batch.need("past.baseline", self.name).to(batch.dtype)
        return batch.broadcast((batch.total_reward_b - baseline_b) * batch.stats_b)
