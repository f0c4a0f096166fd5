"""Relations between rows of a batch: a preference matrix, a tree, pairs that are compared, vectors of preference.

A difference of two rows that is as small as rounding makes it is a tie, whatever its last bits say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from grouprl.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Edges:
    """E directed edges between rows, each with a value.

    A preference matrix has an edge for each pair of compared rows; its value is the probability that the first is
    preferred. A tree has an edge from each row to its parent.
    """

    index_e2: Tensor
    """[E,2] int64: the rows at which each edge starts and ends."""
    value_e: Tensor
    """[E] float: the value of each edge."""

    def __post_init__(self) -> None:
        """Refuse wrong shapes and types."""
        index_e2, value_e = self.index_e2, self.value_e
        if not (index_e2.ndim == 2 and index_e2.shape[1] == 2 and index_e2.dtype == torch.int64):
            raise InputError(
                f"index_e2 has shape {list(index_e2.shape)} and type {index_e2.dtype}",
                "it must be [E,2] and int64: the rows that each edge joins",
                "Use torch.tensor([[0, 1]]), for instance",
            )
        if value_e.shape != index_e2.shape[:1] or not value_e.is_floating_point():
            raise InputError(
                f"value_e has shape {list(value_e.shape)} and type {value_e.dtype}",
                f"it must be [E] = [{len(index_e2)}] and a float type",
                "Use torch.ones(len(index_e2)) where edges have no value",
            )

    def __len__(self) -> int:
        """Return the number of edges."""
        return len(self.index_e2)

    @classmethod
    def where(cls, related_bb: Tensor, value_bb: Tensor) -> Edges:
        """Return the edges at which `related_bb` ([B,B] bool) holds, with their values of `value_bb` ([B,B])."""
        return cls(related_bb.nonzero(), value_bb[related_bb])

    def rows(self, index: Tensor, size: int) -> Edges:
        """Return the edges between the selected rows `index` ([N] int64) of `size` rows, renumbered.

        An edge is kept if both of its rows are selected. The edges of a row selected twice go to its last position.
        """
        moved_e2 = moved(self.index_e2, index, size)
        kept_e = (moved_e2 >= 0).all(1)
        return Edges(moved_e2[kept_e], self.value_e[kept_e])


def joined(parts: Sequence[tuple[Mapping[str, Edges], int]]) -> dict[str, Edges]:
    """Return the named edges of several collections of rows, each with its number of rows, put one after another."""
    found: dict[str, list[Edges]] = {}
    before = 0
    for edges, size in parts:
        for name, own in edges.items():
            found.setdefault(name, []).append(Edges(own.index_e2 + before, own.value_e))
        before += size
    return {
        name: Edges(torch.cat([e.index_e2 for e in each]), torch.cat([e.value_e for e in each]))
        for name, each in found.items()
    }


def moved(row: Tensor, index: Tensor, size: int) -> Tensor:
    """Return the position in `index` of each number in `row` (of `size` rows); -1 for those missing, and for -1."""
    place_b = torch.full((size + 1,), -1, dtype=torch.int64, device=index.device)
    place_b[index] = torch.arange(len(index), device=index.device)
    return place_b[row]


def preference_scores(one_nd: Tensor, other_nd: Tensor) -> Tensor:
    """Return [N] the scores of the vectors of `one_nd` against those of `other_nd`; exchanging the two changes the
    sign.

    A score is the sum over blocks of two coordinates of one₁·other₂ - one₂·other₁ (D even); preferences may be cyclic.
    """
    return (one_nd[:, 0::2] * other_nd[:, 1::2] - one_nd[:, 1::2] * other_nd[:, 0::2]).sum(1)


ROUNDING = 16
"""Largest difference that counts as rounding, in units of the last place of 1 plus the sizes of both numbers."""


def without_rounding(gap: Tensor, size: Tensor) -> Tensor:
    """Return differences, exactly 0 where they are as small as rounding.

    Args:
        gap: differences of two numbers each.
        size: the sizes of both numbers, added up; of sums of log-probs, those of the sums.
    """
    return torch.where(gap.abs() <= ROUNDING * torch.finfo(gap.dtype).eps * (1 + size), 0, gap)


OF_TOKENS = 512
"""Largest difference of two log-probs of a token that counts as rounding, in units of the last place of 1 nat."""


def beyond_rounding(gap_bt: Tensor) -> Tensor:
    """Return differences of two log-probs of a token each, exactly 0 and flat where they are as small as rounding.

    Before a policy has moved, its log-probs are those it is compared with, and a slope must not depend on their last
    bits.
    """
    return gap_bt * (gap_bt.abs() > OF_TOKENS * torch.finfo(gap_bt.dtype).eps)


def beyond_rounding_code(name: str) -> str:
    """Return plain torch code for `beyond_rounding` of the tensor `name`."""
    return f"{name} * ({name}.abs() > {OF_TOKENS} * torch.finfo({name}.dtype).eps)"


def flat_within_rounding(gap_bt: Tensor) -> Tensor:
    """Return differences of two log-probs of a token each, without a slope where they are as small as rounding.

    The slope of a distance there is the last bits of the difference, which Adam would scale up to a whole step.
    """
    return torch.where(beyond_rounding(gap_bt.detach()) == 0, gap_bt.detach(), gap_bt)


def flat_within_rounding_code(name: str) -> str:
    """Return plain torch code for `flat_within_rounding` of the tensor `name`."""
    return f"torch.where({beyond_rounding_code(f'{name}.detach()')} == 0, {name}.detach(), {name})"


def share_right(gap: Tensor, size: Tensor) -> Tensor:
    """Return 1 where a difference is positive, 0 where it is negative, and ½ where it is as small as rounding.

    The arguments are those of `without_rounding`.
    """
    return (1 + without_rounding(gap.detach(), size.detach()).sign()) / 2
