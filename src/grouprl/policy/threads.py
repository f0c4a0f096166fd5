"""The number of threads that torch may use: one, unless the machine is idle and has cores to spare.

OpenMP's threads wait for each other by spinning. On a machine whose cores are busy with something else, two threads
were measured to be more than twenty times slower than one; one thread on a quiet machine loses 15 to 50 per cent.
The rule therefore errs on the side of one.
"""

from __future__ import annotations

import os

import torch

from grouprl.core.errors import InputError
from grouprl.processes.usage import core_count

QUIET_CORES = 4
"""Number of idle cores below which a second thread is not worth the risk."""
MOST_THREADS = 16
"""Largest number of threads: matrix products of the size trained on a CPU do not gain from more."""


def choose_threads(requested: int | str = "auto") -> int:
    """Return the number of threads to use; the caller sets it (`torch.set_num_threads`) and records it.

    A number is returned as it is. "auto" honours OMP_NUM_THREADS. Without it, the result is the number of cores that
    this process may use minus the system's load of the last minute, at most 16, or one if fewer than four cores remain.
    The load changes from minute to minute, and sums depend on the number of threads: to repeat or resume a run bit by
    bit, store the result and pass it as `requested`.

    Raises:
        InputError: `requested` is neither "auto" nor a positive integer.
    """
    if requested == "auto":
        stated = os.environ.get("OMP_NUM_THREADS", "")
        return int(stated) if stated.isdecimal() and int(stated) > 0 else _idle_threads()
    if isinstance(requested, bool) or not isinstance(requested, int) or requested < 1:
        raise InputError(
            f"threads={requested!r}", "The number of threads must be a positive integer or 'auto'", "Give 1 or more"
        )
    return requested


def set_threads(requested: int | str = "auto") -> int:
    """Choose a number as `choose_threads` does, set torch's number of threads, and return it."""
    count = choose_threads(requested)
    torch.set_num_threads(count)
    return count


def _idle_threads() -> int:
    idle = int(core_count() - _load())
    return min(idle, MOST_THREADS) if idle >= QUIET_CORES else 1


def _load() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else float("inf")
