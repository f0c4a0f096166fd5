"""Advantages that count more where a completion is far from its demonstration (GRPO-S of DR-IRL)."""

from __future__ import annotations

from torch import Tensor

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


@part("advantage_transform")
class DifficultyScale(AdvantageTransform):
    """GRPO-S: A ← A·(1 + a·h)·(1 + c·σ(Δ)), h how unlike the demonstration, Δ how far below it by the learned reward.

    h is `stats.hardness`, Δ `stats.demonstration_gap`, both of `irl_reward`. *Differs from the paper*, whose formula
    was not seen: it scales rewards before the group is normalised, by a number from these two that grows with both. A
    number that all completions of a prompt share would then cancel, so advantages are scaled here (arXiv:2503.18991).
    """

    hardness: NonNegative = 1.0
    gap: NonNegative = 1.0
    says = (
        "advantages count up to {hardness:g} times more the less a completion is like its demonstration, and up to "
        "{gap:g} times more the further the learned reward has it below"
    )
    equation = "A ← A·(1 + {hardness:g}·h)·(1 + {gap:g}·σ(r* - r))"
    reads = ("stats.hardness", "stats.demonstration_gap")
    plain = (
        'hard_bt, gap_bt = stats["hardness"], stats["demonstration_gap"]\n'
        "adv_bt = adv_bt * (1 + {hardness!r} * hard_bt) * (1 + {gap!r} * torch.sigmoid(gap_bt))"
    )

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return A·(1 + a·h)·(1 + c·σ(Δ))."""
        hard_bt, gap_bt = (batch.need(name, self.name) for name in self.reads)
        return adv_bt * (1 + self.hardness * hard_bt) * (1 + self.gap * gap_bt.sigmoid())

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if both numbers are 0."""
        return ["difficulty_scale has no effect: hardness and gap are 0"] if self.hardness == self.gap == 0 else []
