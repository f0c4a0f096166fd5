"""Pieces of tensors that are divided among ranks."""

from __future__ import annotations

import math

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard


def piece_of(whole: Tensor, like: DTensor) -> Tensor:
    """Return this rank's piece of `whole`, a view, divided as `like` is: first among the ranks of a row, then over
    columns.
    """
    mesh, at = like.device_mesh, like.device_mesh.get_coordinate()
    assert at is not None
    for dim in reversed(range(mesh.ndim)):
        placement = like.placements[dim]
        if isinstance(placement, Shard | _StridedShard):
            pieces = whole.chunk(mesh.size(dim), placement.dim)
            whole = pieces[at[dim]] if at[dim] < len(pieces) else whole.narrow(placement.dim, 0, 0)
    return whole


def copies(tensor: Tensor, count: int) -> int:
    """Return how many of `count` ranks hold each piece of a distributed tensor."""
    assert isinstance(tensor, DTensor)
    mesh = tensor.device_mesh
    cut = math.prod(mesh.size(dim) for dim, each in enumerate(tensor.placements) if not isinstance(each, Replicate))
    return count // cut


def local(tensor: Tensor) -> Tensor:
    """Return this rank's piece of a distributed tensor, which shares its memory."""
    assert isinstance(tensor, DTensor)
    return tensor.to_local().detach()
