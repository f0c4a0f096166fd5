"""Whether this process leads others: known without loading what they exchange tensors with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grouprl.policy.ranks import Ranks

LEADING: list[Ranks] = []
"""The ranks (`grouprl.policy.ranks.Ranks`) that this process leads, while it does."""


def current_ranks() -> Ranks | None:
    """Return the ranks that this process leads (`grouprl.policy.ranks.Ranks`); None where it is alone."""
    return LEADING[-1] if LEADING else None


def ranks_requested() -> int:
    """Return how many processes a launcher started for this run; 1 without one."""
    given = os.environ.get("WORLD_SIZE", "")
    return int(given) if given.isdecimal() else 1


def ranks_here() -> int:
    """Return how many of them run on this machine."""
    given = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(given) if given.isdecimal() else ranks_requested()


def own_rank() -> int:
    """Return which of them this process is."""
    return int(os.environ.get("RANK", "0"))
