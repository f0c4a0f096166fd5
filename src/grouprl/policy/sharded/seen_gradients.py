"""The gradients of several optimiser steps, added up piece by piece on the ranks that hold them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from grouprl.policy.sharded.pieces import copies, local
from grouprl.policy.sharded.rank_work import POLICY
from grouprl.policy.thinning import thinned

if TYPE_CHECKING:
    from torch import Tensor

    from grouprl.policy.sharded.ranks import Station

SEEN = "seen gradients"
"""The name under which a rank keeps the sum."""


@dataclass(frozen=True)
class Look:
    """A request to add one entry in `every` of the policy's gradient to the sum, which the `first` one begins."""

    every: int
    first: bool


def look(station: Station, share: Look) -> tuple[float, float]:
    """Add the gradient to the sum; return the squared norms of both, of the entries looked at on all ranks."""
    parameters = list(station.kept[POLICY].parameters())
    now = thinned([_gradient(each) for each in parameters], share.every)
    kept = now if share.first else [one + other for one, other in zip(station.kept[SEEN], now, strict=True)]
    station.kept[SEEN] = kept
    often = [copies(each, station.count) for each in parameters]  # ranks that hold the same piece count it once
    found = torch.stack([_square(zip(now, often, strict=True)), _square(zip(kept, often, strict=True))])
    found = found.to(station.device)
    dist.all_reduce(found, group=station.everyone)
    return float(found[0]), float(found[1])


def _gradient(parameter: Tensor) -> Tensor:
    """Return this rank's piece of a gradient; zeros for a missing one."""
    return torch.zeros_like(local(parameter)) if parameter.grad is None else local(parameter.grad)


def _square(pieces: Iterable[tuple[Tensor, int]]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    return sum((piece.double().square().sum() / often for piece, often in pieces), total)
