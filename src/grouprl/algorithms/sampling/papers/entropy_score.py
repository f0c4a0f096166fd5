"""The uncertainty of a token compared with the others of a step: HAPO's ĥ (arXiv:2509.16591)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

NO_WIDTH = 1e-6
"""Width in nats up to which all log-entropies on a side of the pivot count as equal."""
Extent = tuple[float, float, float]
"""Pivot of log H and its distances to the smallest and the largest value; inf on a side without width."""


def extent(entropy_n: Tensor, pivot: float) -> Extent:
    """Return the `pivot`-quantile (nearest) of log H of the entropies [N], N above 0, and the extents around it."""
    log_n = entropy_n.clamp(min=1e-8).log().sort().values
    middle = float(log_n[round(pivot * (len(log_n) - 1))])
    return middle, _width(float(log_n[-1]) - middle), _width(middle - float(log_n[0]))


def _width(nats: float) -> float:
    return nats if nats > NO_WIDTH else math.inf


def score(entropy_n: Tensor, found: Extent, *, released: bool) -> Tensor:
    """Return [N] ĥ in [-1, 1]: log H around the pivot, each side scaled to its extreme; 0 on a side without width.

    `released` divides the lower side by its signed minimum, as the authors' code does, so that ĥ is never negative.
    """
    middle, top, bottom = found
    around_n = entropy_n.clamp(min=1e-8).log() - middle
    return (around_n.clamp(min=0) / top + around_n.clamp(max=0) / (-bottom if released else bottom)).clamp(-1, 1)


@dataclass(frozen=True)
class ScoredTemperature:
    """The factor 1 + tau·ĥ of a token's temperature, in which ĥ is the `score` of its entropy (HAPO)."""

    tau: float
    extent: Extent
    released: bool = False

    def factors(self, entropy_n: Tensor) -> Tensor:
        """Return the factors [N] of the temperature for distributions of these entropies [N] in nats."""
        return 1 + self.tau * score(entropy_n, self.extent, released=self.released)
