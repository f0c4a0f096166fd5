"""Processors and memory: how much a process uses, and how much is left for more processes."""

from __future__ import annotations

import os

SPARE_MEMORY = 1 << 30
"""Bytes of memory that must stay free when workers are added, apart from the memory of four more workers."""


def core_count() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_seconds(pid: int) -> float | None:
    """Return the seconds of processor time that a process has used; None if the system does not report them."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def free_memory() -> int | None:
    """Return the bytes of memory that new processes can have without swapping; None if the system does not say."""
    try:
        with open("/proc/meminfo", "rb") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith(b"MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def memory_for_another(pid: int, coming: int = 0) -> bool:
    """Return whether the machine has free memory for several more processes like `pid`; True if this is unknown.
    `coming` is the number of processes that have just been started.
    """
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            own = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return True
    free = free_memory()
    return free is None or free > SPARE_MEMORY + (4 + coming) * own
