"""The first number of numpy's default generator for many seeds at once.

To make a generator takes longer than a small policy's action. Seeds of successive actions follow each other, so those
near a seed are hashed with it, all together. The numbers are those of `np.random.default_rng(seed).random()`, bit by
bit: SeedSequence and PCG64, whose streams numpy keeps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

TOGETHER, KEPT = 32, 4096
"""Neighbouring seeds that are hashed together, and how many such blocks are kept."""
_blocks: dict[int, np.ndarray] = {}
_WORDS = 4
_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
_MASK = 2**128 - 1


def first_uniforms(seeds: Sequence[int]) -> list[float]:
    """Return the first uniform number in [0,1) of each seed (0 to 2**64 - 1), as `default_rng(seed).random()`."""
    if missing := sorted({seed // TOGETHER for seed in seeds} - _blocks.keys()):
        if len(_blocks) + len(missing) > KEPT:
            _blocks.clear()
            missing = sorted({seed // TOGETHER for seed in seeds})
        first_m = np.array([number * TOGETHER for number in missing], dtype=np.uint64)
        word_nw = _states((first_m[:, None] + np.arange(TOGETHER, dtype=np.uint64)).ravel()).T
        _blocks.update(zip(missing, word_nw.reshape(len(missing), TOGETHER, _WORDS), strict=True))
    return [_first(*_blocks[seed // TOGETHER][seed % TOGETHER].tolist()) for seed in seeds]


def _first(high: int, low: int, increment_high: int, increment_low: int) -> float:
    """Return the first number of PCG64 with these words as its state and stream."""
    increment = (((increment_high << 64 | increment_low) << 1) | 1) & _MASK
    state = (((increment + (high << 64 | low)) * _MULTIPLIER + increment) * _MULTIPLIER + increment) & _MASK
    folded, turn = (state >> 64) ^ (state & (2**64 - 1)), state >> 122
    drawn = (folded >> turn | folded << (-turn & 63)) & (2**64 - 1)
    return float(drawn >> 11) / 2**53


class _Hash:
    """The hash of SeedSequence, whose constant changes with each call."""

    def __init__(self, constant: int, factor: int) -> None:
        self.constant, self.factor = constant, factor

    def __call__(self, value_n: np.ndarray) -> np.ndarray:
        value_n = value_n ^ np.uint32(self.constant)
        self.constant = self.constant * self.factor & 0xFFFFFFFF
        value_n = value_n * np.uint32(self.constant)
        mixed_n: np.ndarray = value_n ^ value_n >> np.uint32(16)
        return mixed_n


def _states(seed_n: np.ndarray) -> np.ndarray:
    """Return the first four words [4,N] uint64 that SeedSequence makes of seeds [N] uint64."""
    low_n, high_n = (seed_n & np.uint64(0xFFFFFFFF)).astype(np.uint32), (seed_n >> np.uint64(32)).astype(np.uint32)
    hashed = _Hash(0x43B0D7E5, 0x931E8875)
    nothing_n = np.zeros_like(low_n)
    pool = [hashed(word_n) for word_n in (low_n, high_n, nothing_n, nothing_n)]
    for source in range(_WORDS):
        for place in (p for p in range(_WORDS) if p != source):
            pool[place] = _mixed(pool[place], hashed(pool[source]))
    final = _Hash(0x8B51F9DD, 0x58F38DED)
    word_wn = np.stack([final(pool[number % _WORDS]) for number in range(2 * _WORDS)]).astype(np.uint64)
    joined_wn: np.ndarray = word_wn[0::2] | word_wn[1::2] << np.uint64(32)
    return joined_wn


def _mixed(one_n: np.ndarray, other_n: np.ndarray) -> np.ndarray:
    value_n: np.ndarray = np.uint32(0xCA01F9DD) * one_n - np.uint32(0x4973F715) * other_n
    mixed_n: np.ndarray = value_n ^ value_n >> np.uint32(16)
    return mixed_n
