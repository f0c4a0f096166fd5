"""`clamp` with any slope at its bounds, as releases of torch have had it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

PLAIN = torch.Tensor.clamp


def with_slope(at_bounds: float) -> Callable[..., Tensor]:
    """Return a `clamp` with this slope at its bounds."""

    def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
        held = PLAIN(x.detach(), min, max)
        if not x.is_floating_point():
            return held
        at = torch.zeros_like(held, dtype=torch.bool)
        for bound in (min, max):
            at = at if bound is None else at | (x.detach() == bound)
        slope = torch.where(at, at_bounds, (held == x.detach()).to(x.dtype))
        return held + slope * (x - x.detach())

    return clamp
