"""Keys and values kept between the turns of an episode, so that a turn reads only new tokens."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

GIB = 2**30
KV: TypeAlias = tuple[torch.Tensor, ...]
"""Keys and values of rows, [..., N, kv_heads, slots, d] each, however a decoder divides them."""


class RowStore(Protocol):
    """A store of the keys and values of rows, which can hand them over."""

    width: int
    """Number of slots of the longest prompt; all prompts end there."""

    def written(self, index_n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return a copy of the keys and values of the rows `index_n`, [..., N, kv_heads, slots, d] each."""
        ...


@dataclass(frozen=True)
class _Held:
    """Keys and values of a row's first tokens: `ids` are those tokens, slot `begin` of row `row` of `kv` the first."""

    ids: tuple[int, ...]
    kv: KV
    row: int
    begin: int


class Past:
    """Cached keys and values of the beginnings of some prompts."""

    def __init__(self, held: dict[tuple[int, ...], _Held]) -> None:
        self._held = held
        """The cached beginning of each prompt."""

    def known(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Return how many tokens of each prompt are cached; at least its last token always has to be read."""
        held = (self._held.get(tuple(prompt)) for prompt in prompts)
        return [0 if each is None else len(each.ids) for each in held]

    def kinds(self) -> KV:
        """Return cached tensors as examples of types and sizes; an empty tuple if nothing is cached."""
        return next((held.kv for held in self._held.values()), ())

    def fill(self, kv: KV, prompts: Sequence[Sequence[int]]) -> None:
        """Write the cached keys and values into `kv`, where prompt i is in row i and ends with the last slot."""
        for i, prompt in enumerate(prompts):
            held = self._held.get(tuple(prompt))
            if held is None:
                continue
            of, count = held.begin, len(held.ids)
            for tensor, known in zip(kv, held.kv, strict=True):
                to = tensor.shape[-2] - len(prompt)
                tensor[..., i, :, to : to + count, :] = known[..., held.row, :, of : of + count, :]


class TurnCache:
    """Keys and values of rows by name, from one turn to the next, up to `limit_gb` GiB in all.

    Rows are compared by their tokens: a row that has changed in the meantime is read from where it differs. Rows that
    no longer fit are read in full.
    """

    def __init__(self, limit_gb: float) -> None:
        self.limit = int(limit_gb * GIB)
        self._held: dict[Hashable, _Held] = {}

    def past(self, names: Sequence[Hashable], prompts: Sequence[Sequence[int]]) -> Past:
        """Return the cached beginnings of `prompts`, and remove them here."""
        found: dict[tuple[int, ...], _Held] = {}
        for name, prompt in zip(names, prompts, strict=True):
            held, whole = self._held.pop(name, None), tuple(prompt)
            if held is not None and len(held.ids) < len(whole) and whole[: len(held.ids)] == held.ids:
                found[whole] = held
        return Past(found)

    def keep(self, names: Sequence[Hashable], leaves: Sequence[Leaving], rows: Sequence[Sequence[int]]) -> None:
        """Store the keys and values of ended rows; `rows` are their tokens, the last of which has not been read."""
        # By identity: rows that left together share one tensor, which stays as long as any of them is held.
        used = sum(_size(kv) for kv in {id(held.kv): held.kv for held in self._held.values()}.values())
        for leaving in leaves:
            used += _size(leaving.kv)
            if used > self.limit:
                return
            for place, row in enumerate(leaving.rows):
                ids, begin = tuple(rows[row][:-1]), leaving.begin[place]
                self._held[names[row]] = _Held(ids, leaving.kv, place, begin)


@dataclass(frozen=True)
class Leaving:
    """Keys and values of rows that have ended, and the slot in which each begins."""

    rows: tuple[int, ...]
    kv: KV
    begin: tuple[int, ...]


def leave(decoder: RowStore, index_n: torch.Tensor, rows: Sequence[int], prompt_lengths: Sequence[int]) -> Leaving:
    """Return the keys and values of the rows `index_n` of `decoder`; `rows` are their numbers among all rows."""
    begin = tuple(decoder.width - length for length in prompt_lengths)
    return Leaving(tuple(rows), decoder.written(index_n), begin)


def _size(kv: KV) -> int:
    return sum(each.numel() * each.element_size() for each in kv)
