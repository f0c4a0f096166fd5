"""Completions that are clearly better or worse than another of their prompt."""

from __future__ import annotations

from grouprl.algorithms.filter.filter import Filter, drop
from grouprl.algorithms.lines import APART
from grouprl.algorithms.losses import counted
from grouprl.algorithms.part import part
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


@part("filter")
class ClearlyApart(Filter):
    """Keep completions whose reward differs from another's of their prompt by more than `gap` (RS-DPO).

    The others leave the loss and its denominators.
    """

    gap: NonNegative = 0.0
    says = "leave out completions whose reward is within {gap:g} of every other of their prompt"

    def __call__(self, batch: Batch) -> Batch:
        """Drop rows that are in no accepted pair."""
        reward_b, counts_b = batch.total_reward_b, counted(batch)
        low_b = levels.extreme(reward_b, batch.group_b, counts_b, largest=False)
        high_b = levels.extreme(reward_b, batch.group_b, counts_b, largest=True)
        kept_b = (counts_b > 0) & ((reward_b - low_b > self.gap) | (high_b - reward_b > self.gap))
        return drop(batch, ~kept_b, from_statistics=True)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return f"""known_b = counts_b & active_bt.any(1)
low_b = torch.where(same_bb & known_b, reward_b, torch.inf).amin(1)
high_b = torch.where(same_bb & known_b, reward_b, -torch.inf).amax(1)
out_b = ~known_b | (torch.maximum(reward_b - low_b, high_b - reward_b) <= {self.gap!r})
active_bt = active_bt & ~out_b[:, None]
{APART}"""
