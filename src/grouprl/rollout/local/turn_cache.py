"""Keys and values kept between the turns of an episode, so that a turn reads only what is new."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

GIB = 2**30
KV: TypeAlias = tuple[torch.Tensor, ...]
"""Keys and values of rows, [..., N, kv_heads, slots, d] each, in whatever way a decoder divides them."""


class RowStore(Protocol):
    """What holds the keys and values of rows, and can hand them over."""

    width: int
    """Slots of the longest prompt; all prompts end there."""

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
    """What is known of the beginnings of some prompts."""

    def __init__(self, held: dict[tuple[int, ...], _Held]) -> None:
        self._held = held
        """By prompt."""

    def known(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Return how many tokens of each prompt are known; at least its last one is always left to be read."""
        held = (self._held.get(tuple(prompt)) for prompt in prompts)
        return [0 if each is None else len(each.ids) for each in held]

    def kinds(self) -> KV:
        """Return tensors like those that are known, for their types and sizes; none where nothing is."""
        return next((held.kv for held in self._held.values()), ())

    def fill(self, kv: KV, prompts: Sequence[Sequence[int]]) -> None:
        """Write what is known into `kv`, where prompt i lies in row i and ends with the last slot."""
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

    A row is known by its tokens: one that was changed meanwhile is read from where it differs. Rows that do not fit
    any more are read whole.
    """

    def __init__(self, limit_gb: float) -> None:
        self.limit = int(limit_gb * GIB)
        self._held: dict[Hashable, _Held] = {}

    def past(self, names: Sequence[Hashable], prompts: Sequence[Sequence[int]]) -> Past:
        """Return what is known of `prompts`, and forget it here."""
        found: dict[tuple[int, ...], _Held] = {}
        for name, prompt in zip(names, prompts, strict=True):
            held, whole = self._held.pop(name, None), tuple(prompt)
            if held is not None and len(held.ids) < len(whole) and whole[: len(held.ids)] == held.ids:
                found[whole] = held
        return Past(found)

    def keep(self, names: Sequence[Hashable], leaves: Sequence[Leaving], rows: Sequence[Sequence[int]]) -> None:
        """Take over what rows left behind; `rows` are their tokens, the last of which has not been read."""
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
    """Return what the rows `index_n` of `decoder` leave behind; `rows` are their numbers among all rows."""
    begin = tuple(decoder.width - length for length in prompt_lengths)
    return Leaving(tuple(rows), decoder.written(index_n), begin)


def _size(kv: KV) -> int:
    return sum(each.numel() * each.element_size() for each in kv)
