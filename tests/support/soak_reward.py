"""A reward that fails in every way, by a hash of the completion. Workers import it often: it needs nothing heavy."""

from __future__ import annotations

import os
import sys
import time
import zlib
from typing import Any


def reward(completion: str, *, answer: str) -> Any:
    """Right or wrong, or one of many kinds of nonsense, by a hash of the completion."""
    case = zlib.crc32(f"{answer}/{completion}".encode()) % 1000
    if case < 10:
        raise ValueError("out of order")
    if case < 15:
        return float("nan")
    if case < 18:
        return None
    if case < 20:
        time.sleep(60)
    if case == 20:
        sys.exit("goodbye")
    if case == 21:
        os._exit(9)
    if case == 22:
        print("x" * 2_000_000)
    if case == 23:
        return "one"
    if case == 24:
        return bytearray(1 << 33)
    return float(completion[: len(answer)] == answer)
