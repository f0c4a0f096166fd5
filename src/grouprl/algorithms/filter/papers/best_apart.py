"""The best completion of a group is imitated, and the others are compared without it."""

from __future__ import annotations

from grouprl.algorithms.filter.filter import Filter, drop
from grouprl.algorithms.lines import APART
from grouprl.algorithms.losses import counted
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch

GOLD = "gold"
"""Mark of the tokens of completions to imitate."""


@part("filter")
class BestApart(Filter):
    """In groups of three or more, the best completion is imitated and not compared with any other (TPO).

    From arXiv:2405.16681: its tokens are marked, and it leaves the loss of pairs and the group's statistics. Smaller
    groups stay as they are.
    """

    says = "the best of three or more completions of a prompt is to be imitated, and is compared with none"
    plain = f"""known_b = counts_b & active_bt.any(1)
best_b = torch.where(same_bb & known_b, reward_b, -torch.inf).amax(1)
out_b = (reward_b == best_b) & ((same_bb & known_b).sum(1) > 2) & known_b
gold_bt = active_bt & out_b[:, None]
active_bt = active_bt & ~gold_bt
{APART}"""

    def __call__(self, batch: Batch) -> Batch:
        """Mark the best completions and take them out of comparisons."""
        counts_b = counted(batch)
        best_b = levels.extreme(batch.total_reward_b, batch.group_b, counts_b, largest=True)
        large_b = levels.count(batch.group_b, counts_b, batch.dtype) >= 3
        gold_b = (batch.total_reward_b == best_b) & large_b & (counts_b > 0)
        marked = batch.replace(marks={**batch.marks, GOLD: batch.active_bt & gold_b[:, None]})
        return drop(marked, gold_b, from_statistics=True)

    def idle(self, run: RunFacts) -> list[str]:
        """Say that groups of two have no completion to imitate."""
        if run.group_size > 2:
            return []
        few = f"none is imitated in groups of {run.group_size}"
        return [f"best_apart has no effect: {few}, only in larger ones. Use batch.group_size of 3 or more"]
