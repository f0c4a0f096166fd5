"""Rewards of the measured jobs, as plain functions; both libraries call the same ones."""

from __future__ import annotations

import re
import time


def sum_after_bar(completion: str, *, answer: str, **_: object) -> float:
    """1 iff the digits behind the first '|' are the sum."""
    found = re.search(r"\|(\d+)", completion)
    return float(found is not None and int(found[1]) == int(answer))


def sleeps_when_asked(completion: str) -> float:
    """1 for any completion, after a minute for "sleep"."""
    if completion == "sleep":
        time.sleep(60)
    return 1.0


def even_digits(completion: str, **_: object) -> float:
    """Share of even digits among the characters: it varies within nearly every group."""
    return sum(character in "02468" for character in completion) / max(1, len(completion))
