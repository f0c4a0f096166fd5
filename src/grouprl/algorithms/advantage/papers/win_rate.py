"""SPPO's advantage: by how much a completion wins more than half of its comparisons."""

from __future__ import annotations

from torch import Tensor

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError


@part("advantage")
class WinRate(Advantage):
    """R - ½, the reward being the estimated chance P(y ≻ π) to win against the policy (SPPO, arXiv:2405.00675)."""

    says = "the reward, a chance to win against the policy, minus ½"
    equation = "A = P - ½,  P = R"

    def __call__(self, batch: Batch) -> Tensor:
        """Return R - ½. Raises InputError on a reward that is not between 0 and 1."""
        rate_b = batch.total_reward_b
        wrong_b = ~((rate_b >= 0) & (rate_b <= 1))
        if bool(wrong_b.any()):
            raise InputError(
                f"a reward of {float(rate_b[wrong_b][0]):g}",
                "win_rate reads rewards as chances to win, between 0 and 1",
                "Give the share of won comparisons as the reward, or use target: hard, which reads their order alone",
            )
        return batch.broadcast(rate_b - 0.5)
