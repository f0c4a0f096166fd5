"""Raw outcomes, before any shaping: which completions are right, and what share of each group is."""

from __future__ import annotations

from torch import Tensor

from grouprl.core import levels
from grouprl.core.batch import Batch


def right(batch: Batch) -> Tensor:
    """Return [B] bool: correct completions, by `correct_b` where it is given, else those with a reward above 0 before
    shaping.
    """
    return batch.outcome_b > 0 if batch.correct_b is None else batch.correct_b


def counted_right(batch: Batch) -> Tensor:
    """Return [B] 1 for correct completions that take part in group statistics, else 0."""
    return (right(batch) & batch.stats_b).to(batch.dtype)


def right_share(batch: Batch) -> Tensor:
    """Return [B] share of correct completions among the counted completions of each group."""
    return levels.mean(right(batch).to(batch.dtype), batch.group_b, batch.stats_b.to(batch.dtype))
