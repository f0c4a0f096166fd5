"""The ranks that this process leads, or is one of, without loading what ranks exchange tensors with."""

from __future__ import annotations

import os
from typing import Protocol


class Led(Protocol):
    """Several processes that train one model; `grouprl.policy.sharded.ranks.Ranks` are."""

    @property
    def count(self) -> int:
        """The number of processes."""


LEARNER = "GROUPRL_LEARNER"
"""The variable that tells a process that a cluster has placed it as a learner: the address of that cluster."""
LEADING: list[Led] = []
"""The ranks (`grouprl.policy.sharded.ranks.Ranks`) that this process leads, while it does."""


def current_ranks() -> Led | None:
    """Return the ranks that this process leads (`grouprl.policy.sharded.ranks.Ranks`); None where it is alone."""
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
    """Return the rank of this process."""
    return int(os.environ.get("RANK", "0"))


def launched() -> bool:
    """Return whether a launcher, such as torchrun, has told this process its rank."""
    return "RANK" in os.environ


def placed_by() -> str:
    """Return the address of the cluster that has placed this process as a learner; empty where none has."""
    return os.environ.get(LEARNER, "")
