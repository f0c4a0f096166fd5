"""Prompts of middling difficulty, which are worth an update."""

from __future__ import annotations

from torch import Tensor

from grouprl.algorithms.filter.filter import mixed_rows
from grouprl.algorithms.outcome import right_share
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError

ROUNDING = 1e-6


def band_rows(batch: Batch, low: float, high: float) -> Tensor:
    """Return [B] bool: rows of mixed groups whose share of correct completions lies in [low, high]."""
    share_b = right_share(batch)
    return mixed_rows(batch) & (share_b >= low - ROUNDING) & (share_b <= high + ROUNDING)


def check_band(low: float, high: float) -> None:
    """Raise InputError on an empty band."""
    if low > high:
        raise InputError(f"difficulty_band: low {low:g} > high {high:g}", "the band must not be empty")
