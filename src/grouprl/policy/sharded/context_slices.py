"""The division of the columns of a pass among ranks that share its rows: context parallelism's data.

With N ranks a row is cut into 2N chunks, and rank r takes chunks r and 2N - 1 - r: under a causal mask the early chunk
of a rank is as much cheaper as its late one is dearer, so that all attend to as many keys (Llama 3: Dubey et al. 2024,
arXiv:2407.21783, section 3.3.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from grouprl.policy.language.transformers_engine import PassLayout


@dataclass(frozen=True)
class Slices:
    """The slices of `columns` columns among `count` ranks; columns are filled up to a multiple of 2 `count`."""

    columns: int
    count: int

    @property
    def width(self) -> int:
        """Columns of a chunk; a rank has two chunks."""
        return max(1, math.ceil(self.columns / (2 * self.count)))

    @property
    def length(self) -> int:
        """Columns of all ranks, with those that fill up."""
        return 2 * self.count * self.width

    def columns_of(self, rank: int) -> Tensor:
        """Return the columns of a rank, in ascending order: [2 width]."""
        return self.cut(torch.arange(self.length)[None], rank)[0]

    def cut(self, x_bl: Tensor, rank: int) -> Tensor:
        """Return a rank's columns of `x_bl`, filled up with zeros: [B, 2 width]."""
        chunks = F.pad(x_bl, (0, self.length - x_bl.shape[1])).split(self.width, 1)
        return torch.cat([chunks[rank], chunks[2 * self.count - 1 - rank]], 1)

    def owner(self, column_m: Tensor) -> Tensor:
        """Return the rank that has each column."""
        chunk_m = column_m // self.width
        return torch.minimum(chunk_m, 2 * self.count - 1 - chunk_m)

    def place(self, column_m: Tensor) -> Tensor:
        """Return the place of each column among those of its rank."""
        return column_m % self.width + self.width * (column_m // self.width >= self.count)

    def joined(self, parts_nbhld: Tensor) -> Tensor:
        """Return the columns of all ranks, [N,B,heads,2 width,d], in their order: [B,heads,length,d]."""
        early, late = parts_nbhld.split(self.width, 3)
        return torch.cat([*early, *late.flip(0)], 2)

    def divided(self, x_bhld: Tensor) -> Tensor:
        """Return columns in their order as those of each rank: the inverse of `joined`."""
        chunks = x_bhld.split(self.width, 2)
        return torch.stack([torch.cat([chunks[r], chunks[2 * self.count - 1 - r]], 2) for r in range(self.count)])


@dataclass(frozen=True)
class RankLayout:
    """A rank's slice of a pass."""

    layout: PassLayout
    """Its columns, and the places of the states in them that predict responses."""
    first_bl: Tensor
    """[B, 2 width] the first column of the sequence that each of its columns belongs to, where keys begin."""
    owner_m: Tensor
    """[M] the rank that has the state of each response token."""


def slice_of(whole: PassLayout, slices: Slices, rank: int) -> RankLayout:
    """Return a rank's slice of a pass whose positions say where sequences begin (None: with each row).

    Columns that fill up are sequences of one token. Padding on the right is part of its row: no real token sees it.
    """
    rows, columns = whole.ids_bl.shape
    each_l = torch.arange(columns)
    position_bl = each_l.expand(rows, -1) if whole.position_bl is None else whole.position_bl
    filled_bl = F.pad(position_bl, (0, slices.length - columns))
    first_bl = torch.arange(slices.length) - filled_bl
    column_m, row_m = whole.at_m % columns, whole.at_m // columns
    owner_m = slices.owner(column_m)
    at_m = (row_m * 2 * slices.width + slices.place(column_m))[owner_m == rank]
    own = PassLayout(slices.cut(whole.ids_bl, rank), slices.cut(position_bl, rank), None, at_m)
    return RankLayout(own, slices.cut(first_bl, rank), owner_m)
