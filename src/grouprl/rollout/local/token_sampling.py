"""Sampling tokens: one uniform number per (seed, position), turned into a token by the inverse distribution
function."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_BITS = 48
"""Resolution of the uniforms. Coarser than a double's 53 bits, so that u * total never rounds up to total."""


def uniforms(seeds: Sequence[int], positions: int, sampled: Sequence[int] = ()) -> np.ndarray:
    """Return independent uniforms in [0, 1), float64 [B, positions]; row b depends on seeds[b] alone.

    With `sampled` [B], row b begins after its first sampled[b] numbers.

    The numbers are counter-based: splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
    OOPSLA 2014) of the mixed seed plus position times the golden gamma.
    """
    key_b = _splitmix(np.array([seed & (2**64 - 1) for seed in seeds], dtype=np.uint64))
    with np.errstate(over="ignore"):
        place_bt = np.arange(1, positions + 1, dtype=np.uint64) + np.array(sampled or [0], dtype=np.uint64)[:, None]
        state_bt = key_b[:, None] + place_bt * _GOLDEN
    return (_splitmix(state_bt) >> np.uint64(64 - _BITS)).astype(np.float64) * 2.0**-_BITS


def _splitmix(state: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        z = state + _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def sample(p_rv: torch.Tensor, uniform_r: torch.Tensor) -> torch.Tensor:
    """Return the first token whose cumulative probability exceeds uniform * total, [R] int64.

    `p_rv` need not be normalised; a token of probability zero is never sampled.
    """
    cumulated_rv = p_rv.cumsum(-1, dtype=torch.float64)
    target_r = uniform_r[:, None] * cumulated_rv[:, -1:]
    # From the right: a token of probability 0 has the same sum as the one before it, and is passed over.
    return torch.searchsorted(cumulated_rv, target_r, right=True)[:, 0]


def keep_top_k(logp_rv: torch.Tensor, k: int) -> torch.Tensor:
    """Set all but the k most probable tokens to -inf (ties of the k-th stay); k = 0 keeps everything."""
    if not 0 < k < logp_rv.shape[-1]:
        return logp_rv
    threshold = logp_rv.topk(k, dim=-1).values[:, -1:]
    return logp_rv.masked_fill(logp_rv < threshold, -torch.inf)


def keep_min_p(logp_rv: torch.Tensor, share: float) -> torch.Tensor:
    """Set tokens less probable than `share` times the most probable one to -inf; 0 keeps everything.

    Source: Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs", section 3.
    """
    if share <= 0.0:
        return logp_rv
    least_r = logp_rv.max(-1, keepdim=True).values + math.log(share)
    return logp_rv.masked_fill(logp_rv < least_r, -torch.inf)


def keep_top_p(logp_rv: torch.Tensor, p: float) -> torch.Tensor:
    """Set tokens outside the nucleus to -inf: the smallest set of most probable tokens with mass >= p.

    Source: Holtzman et al., "The Curious Case of Neural Text Degeneration", section 3.1. p = 1 keeps everything.
    """
    if p >= 1.0:
        return logp_rv
    ordered, index = logp_rv.sort(dim=-1, descending=True, stable=True)
    mass = ordered.exp()
    before = mass.cumsum(-1) - mass
    outside = before >= p * mass.sum(-1, keepdim=True)
    # With p = 0 no token would be left.
    outside[:, 0] = False
    return logp_rv.masked_fill(torch.zeros_like(outside).scatter(1, index, outside), -torch.inf)
