"""Completions that end in a loop: the same tokens over and over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LONGEST = 64
"""Tokens of the longest block whose repetition counts: about three sentences."""
TIMES, LEAST = 4, 16
"""How often a block stands at the end, and how many tokens that makes at least: "aaaa" may be an answer."""
WIDTH = LONGEST * TIMES
"""Tokens at the end that are looked at."""


def loop_fraction(ids: Sequence[Sequence[int]]) -> float:
    """Return the share of completions, given without their end tokens, that end in a block repeated `TIMES` times."""
    return float(looped(ids).mean())


def looped(ids: Sequence[Sequence[int]]) -> np.ndarray:
    """Return [B] bool: which completions, given without their end tokens, end in a block repeated `TIMES` times.

    "The Curious Case of Neural Text Degeneration" (arXiv:1904.09751) measures repetition in this way, by a phrase that
    stands at the end at least three times.
    """
    tails_bt = _tails(ids)
    looped_b = np.zeros(len(ids), dtype=bool)
    for period in range(1, LONGEST + 1):
        size = max(LEAST, TIMES * period)
        end_bt = tails_bt[:, WIDTH - size :]
        looped_b |= (end_bt[:, 0] >= 0) & (end_bt[:, period:] == end_bt[:, :-period]).all(1)
    return looped_b


def _tails(ids: Sequence[Sequence[int]]) -> np.ndarray:
    """Return [B, WIDTH] the last tokens of each completion, at the right; -1 where there are none."""
    tails_bt = np.full((len(ids), WIDTH), -1, dtype=np.int64)
    for row, tokens in enumerate(ids):
        if end := tokens[-WIDTH:]:
            tails_bt[row, -len(end) :] = end
    return tails_bt
