"""Processors and memory: those that a process uses, and those that are left for more processes."""

from __future__ import annotations

import os

SPARE_MEMORY = 1 << 30
"""Bytes of memory that further workers leave free, beside that of four of their kind."""


def core_count() -> int:
    """Return the processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_seconds(pid: int) -> float | None:
    """Return the seconds of processor time that a process has used; None where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def memory_for_another(pid: int, coming: int = 0) -> bool:
    """Return whether the machine has free memory for several more processes like `pid`; True where it does not tell.

    `coming` are those that were started just now.
    """
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            own = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        with open("/proc/meminfo", "rb") as file:
            free = next(int(line.split()[1]) << 10 for line in file if line.startswith(b"MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return True
    return free > SPARE_MEMORY + (4 + coming) * own
