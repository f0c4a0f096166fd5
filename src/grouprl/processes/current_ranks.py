"""The ranks that this process leads or belongs to, known without importing the library that exchanges their tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol

from grouprl.core.errors import InputError


class Led(Protocol):
    """Several processes that train one model, such as `grouprl.policy.sharded.ranks.Ranks`."""

    @property
    def count(self) -> int:
        """The number of processes."""


LEARNER = "GROUPRL_LEARNER"
"""The environment variable of a learner that a cluster started: the address of the cluster."""
OF_RANKS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_", "GROUPRL_MEETING"),
)
"""Beginnings of the names of torchrun's environment variables, and of those of `grouprl launch`."""
MEETING = "GROUPRL_MEETING"
"""The environment variable of rank 0 that holds the number of the file to which it writes once all ranks have met."""
CONTINUE = "continue with --resume, or begin anew if there is none yet"
"""Remedy where a rank has ended a run."""
LEADING: list[Led] = []
"""The ranks (`grouprl.policy.sharded.ranks.Ranks`) that this process leads at present; empty if it leads none."""


class MeetingPipe:
    """Tells the process that starts ranks whether they have met: a pipe of which rank 0 has an end until then."""

    def __init__(self) -> None:
        """Open the pipe."""
        self._heard, self.told = os.pipe()
        os.set_blocking(self._heard, False)
        self.variable: Mapping[str, str] = {MEETING: str(self.told)}
        """The environment variable for rank 0."""
        self._over = False

    @property
    def over(self) -> bool:
        """True once all ranks have met."""
        try:
            self._over = self._over or bool(os.read(self._heard, 1))
        except BlockingIOError:
            return False
        return self._over

    def __enter__(self) -> MeetingPipe:
        """Return this object."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the pipe."""
        os.close(self._heard)
        os.close(self.told)


def tell_meeting() -> None:
    """Tell the process that started the ranks, if it listens, that they have met."""
    if given := os.environ.pop(MEETING, ""):
        file = int(given)
        os.write(file, b"m")
        os.close(file)


def current_ranks() -> Led | None:
    """Return the ranks that this process leads (`grouprl.policy.sharded.ranks.Ranks`); None if it works alone."""
    return LEADING[-1] if LEADING else None


def ranks_requested() -> int:
    """Return how many processes a launcher started for this run; 1 without one."""
    return _number("WORLD_SIZE", 1)


def ranks_here() -> int:
    """Return the number of this run's processes on this machine."""
    given = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(given) if given.isdecimal() else ranks_requested()


def environment_without_ranks() -> dict[str, str]:
    """Return the environment for a program that is not a rank: it would take torchrun's variables for its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OF_RANKS)}


def own_rank() -> int:
    """Return the rank of this process."""
    return _number("RANK", 0)


def check_rank() -> None:
    """Check that this process is one of the ranks that a launcher started; raises InputError."""
    if own_rank() >= ranks_requested():
        raise InputError(
            f"RANK={own_rank()} with WORLD_SIZE={ranks_requested()}",
            "ranks are numbered from 0 to one less than WORLD_SIZE",
            "Start every process with the same WORLD_SIZE and a RANK of its own, as torchrun does",
        )


def _number(name: str, default: int) -> int:
    """Return a number that a launcher gave as an environment variable; `default` if it gave none."""
    given = os.environ.get(name) or str(default)
    if not given.isdecimal():
        raise InputError(f"{name}={given}", "it must be a whole number", f"Unset {name}, or start the run by torchrun")
    return int(given)


def starts() -> int:
    """Return how often torchrun has started the ranks again before this process, in place of lost ones
    (`--max-restarts`).
    """
    given = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(given) if given.isdecimal() else 0


def launched() -> bool:
    """Return whether a launcher, such as torchrun, has told this process its rank."""
    return "RANK" in os.environ


def placed_by() -> str:
    """Return the address of the cluster that started this process as a learner; "" if none did."""
    return os.environ.get(LEARNER, "")
