"""Differences that are as small as rounding makes them: they are ties, whatever their last bits say."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 16
"""Largest difference that counts as rounding, in units of the last place of 1 plus the sizes of both numbers."""


def without_rounding(gap: Tensor, size: Tensor) -> Tensor:
    """Return differences, exactly 0 where they are as small as rounding.

    Args:
        gap: differences of two numbers each.
        size: the sizes of both numbers, added up; of sums of log-probs, those of the sums.
    """
    return torch.where(gap.abs() <= ROUNDING * torch.finfo(gap.dtype).eps * (1 + size), 0, gap)


def share_right(gap: Tensor, size: Tensor) -> Tensor:
    """Return 1 where a difference is positive, 0 where it is negative, and ½ where it is as small as rounding.

    The arguments are those of `without_rounding`.
    """
    return (1 + without_rounding(gap.detach(), size.detach()).sign()) / 2
