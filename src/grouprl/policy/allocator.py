"""Memory of the size of a tiny model's activations is returned to the system and allocated anew all the time.

glibc maps every block above a threshold by itself and unmaps it when it is freed, so that each operation pays for fresh
pages: about a tenth of a training step on a CPU. Raising the thresholds keeps freed memory in the process.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Numbers of the settings in glibc's malloc.h."""
KEPT = 2**30
"""Bytes: blocks smaller than this are reused, and so much free memory is kept at the top of the heap."""


def keep_freed_memory() -> bool:
    """Ask the C library to reuse freed memory instead of returning it; False where it has no such
    setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all([mallopt(M_MMAP_THRESHOLD, KEPT) == 1, mallopt(M_TRIM_THRESHOLD, KEPT) == 1])
