"""Running mean and deviation of observations, by which a policy over arrays reads them normalised."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

LIMIT = 10.0
"""Largest magnitude of a normalised observation, as in Stable-Baselines3's VecNormalize."""
EPSILON = 1e-8


class ObservationMoments(nn.Module):
    """Mean and variance of F numbers over all observations so far, and those in use.

    `observe` adds observations to what has been seen; `renew` puts that in use. Between two calls of `renew` the policy
    stays one function of its observations, so that old and new log-probs of a rollout are read by the same numbers.

    Args:
        count: F.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        for name, start in (("mean", 0.0), ("square", 0.0), ("used_mean", 0.0), ("used_std", 1.0)):
            self.register_buffer(name, torch.full((count,), start, dtype=torch.float64))

    def forward(self, found_nf: Tensor) -> Tensor:
        """Return (x - mean) / std of the numbers in use, clipped to ±10."""
        mean_f, std_f = (self._own(name).to(found_nf) for name in ("used_mean", "used_std"))
        return ((found_nf - mean_f) / std_f).clamp(-LIMIT, LIMIT)

    @torch.no_grad()
    def observe(self, found_nf: Tensor) -> None:
        """Add N observations: the sums of squared deviations of two sets add up, with one term for their means (Chan et
        al. 1979).
        """
        count, mean_f, square_f = self._own("count"), self._own("mean"), self._own("square")
        new_nf = found_nf.to(mean_f)
        own, more = float(count), len(new_nf)
        if more == 0:
            return
        gap_f = new_nf.mean(0) - mean_f
        square_f += (new_nf - new_nf.mean(0)).square().sum(0) + gap_f.square() * own * more / (own + more)
        mean_f += gap_f * more / (own + more)
        count += more

    @torch.no_grad()
    def renew(self) -> None:
        """Put what has been seen in use; before the first observation nothing changes."""
        count = self._own("count")
        if float(count) > 0:
            self._own("used_mean").copy_(self._own("mean"))
            self._own("used_std").copy_((self._own("square") / count + EPSILON).sqrt())

    def _own(self, name: str) -> Tensor:
        return cast("Tensor", getattr(self, name))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ObservationMoments:
        """Stay in float64 when the policy takes another type; only the device follows."""
        for name, value in list(self._buffers.items()):
            if value is not None:
                self._buffers[name] = value.to(fn(value).device)
        return self
