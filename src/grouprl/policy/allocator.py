"""Settings of the C library's allocator: whether freed memory stays in the process.

By default glibc maps every block above a threshold separately and unmaps it when it is freed. The activations of even a
tiny model are above it, so each operation pays for fresh pages: about a tenth of a training step on a CPU. Raising the
thresholds keeps freed memory in the process. Ranks gather and drop one layer after the other: there, the kept memory
breaks into pieces that fit no other layer, and a rank came to hold as much of it as two whole models.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Numbers of these settings in glibc's malloc.h."""
KEPT, RETURNED = 2**30, 2**20
"""Size in bytes below which blocks are reused; as much free memory is kept at the top of the heap."""


def keep_freed_memory() -> bool:
    """Ask the C library to reuse freed memory; return False if it has no such setting."""
    return _reuse_below(KEPT)


def return_freed_memory() -> bool:
    """Ask the C library to return large blocks to the system; return False if it has no such setting."""
    return _reuse_below(RETURNED)


def _reuse_below(size: int) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all([mallopt(M_MMAP_THRESHOLD, size) == 1, mallopt(M_TRIM_THRESHOLD, size) == 1])
