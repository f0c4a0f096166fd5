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


def _constants(first: int, factor: int, count: int) -> np.ndarray:
    """Return the constants [count+1,1] uint32 with which SeedSequence hashes `count` words, one after the other."""
    return np.array([[first * pow(factor, n, 2**32) % 2**32] for n in range(count + 1)], dtype=np.uint32)


_OF_POOL = _constants(0x43B0D7E5, 0x931E8875, _WORDS * _WORDS)
_OF_OUTPUT = _constants(0x8B51F9DD, 0x58F38DED, 2 * _WORDS)


def _hashed(word_wn: np.ndarray, constant_w1: np.ndarray) -> np.ndarray:
    """Return words [W,N] hashed with W + 1 constants."""
    value_wn = (word_wn ^ constant_w1[:-1]) * constant_w1[1:]
    hashed_wn: np.ndarray = value_wn ^ value_wn >> np.uint32(16)
    return hashed_wn


def _states(seed_n: np.ndarray) -> np.ndarray:
    """Return the first four words [4,N] uint64 that SeedSequence makes of seeds [N] uint64."""
    low_n, high_n = (seed_n & np.uint64(0xFFFFFFFF)).astype(np.uint32), (seed_n >> np.uint64(32)).astype(np.uint32)
    nothing_n = np.zeros_like(low_n)
    pool_wn = _hashed(np.stack([low_n, high_n, nothing_n, nothing_n]), _OF_POOL[: _WORDS + 1])
    for source in range(_WORDS):
        others, used = [place for place in range(_WORDS) if place != source], _WORDS + source * (_WORDS - 1)
        pool_wn[others] = _mixed(pool_wn[others], _hashed(pool_wn[source], _OF_POOL[used : used + _WORDS]))
    word_wn = _hashed(np.concatenate([pool_wn, pool_wn]), _OF_OUTPUT).astype(np.uint64)
    joined_wn: np.ndarray = word_wn[0::2] | word_wn[1::2] << np.uint64(32)
    return joined_wn


def _mixed(one_wn: np.ndarray, other_wn: np.ndarray) -> np.ndarray:
    value_wn: np.ndarray = np.uint32(0xCA01F9DD) * one_wn - np.uint32(0x4973F715) * other_wn
    mixed_wn: np.ndarray = value_wn ^ value_wn >> np.uint32(16)
    return mixed_wn
