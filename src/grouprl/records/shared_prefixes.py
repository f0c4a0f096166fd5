"""Tokens with the same history in several rows: a causal model computes the same states for them, so it reads them
once.

Rows are laid out as a tree. A prompt that several completions share is the commonest case; completions that begin
alike, branches of one episode and prompts after one instruction are others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Histories:
    """Rows in an order in which each has as many first tokens as possible in common with the row before it.

    Attributes:
        order: index of the rows, [R].
        common_r: number of first tokens that a row has in common with the row before it in this order, [R].
        length_r: number of tokens of each row in this order, [R].
    """

    order: tuple[int, ...]
    common_r: np.ndarray
    length_r: np.ndarray

    @property
    def distinct(self) -> int:
        """Number of tokens that differ in themselves or in their history."""
        return int((self.length_r - self.common_r).sum())

    @property
    def ratio(self) -> float:
        """Ratio of all tokens to distinct ones; 1 if there are no tokens."""
        return float(self.length_r.sum() / self.distinct) if self.distinct else 1.0

    def paths(self) -> np.ndarray:
        """Return the index of each row's tokens among the distinct ones, rows in this order, [R, longest].

        A row's own tokens, those after its common beginning, follow the tokens of the rows before it; tokens of the
        common beginning have the indices that they got with the row that first held them. Entries beyond a row's end
        are undefined.
        """
        row_r, at_l = np.arange(len(self.order)), np.arange(self.length_r.max(initial=0))
        own_r = self.length_r - self.common_r
        begin_r = np.cumsum(own_r) - own_r - self.common_r
        owner_rl = np.maximum.accumulate(np.where(at_l >= self.common_r[:, None], row_r[:, None], 0), axis=0)
        return begin_r[owner_rl] + at_l


def histories(rows: Sequence[Ids]) -> Histories:
    """Arrange rows of token ids as a tree: sorting puts rows with the longest common beginnings next to each other."""
    order = sorted(range(len(rows)), key=rows.__getitem__)
    pairs = zip([None, *order[:-1]], order, strict=True) if order else ()
    common = [0 if before is None else common_beginning(rows[before], rows[row]) for before, row in pairs]
    return Histories(tuple(order), np.array(common, dtype=np.int64), np.array([len(rows[i]) for i in order], np.int64))


def common_beginning(first: Ids, second: Ids) -> int:
    """Return how many first tokens two rows have in common."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle - 1)
    return low
