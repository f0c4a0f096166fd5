"""Keys and values kept between the turns of an episode, so that a turn reads only what is new."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

GIB = 2**30


@dataclass(frozen=True)
class _Held:
    """Keys and values of a row's first tokens: `ids` are those tokens, slot `begin` of row `row` of `kv` the first."""

    ids: tuple[int, ...]
    kv: torch.Tensor
    row: int
    begin: int


class Past:
    """What is known of the beginnings of some prompts."""

    def __init__(self, held: dict[tuple[int, ...], _Held]) -> None:
        self._held = held
        """By prompt."""

    def fill(self, kv: torch.Tensor, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Write what is known into `kv` [layers,2,N,kv_heads,width,d]; return how many tokens of each prompt that is.

        At least the last token of a prompt is always left to be read.
        """
        width, known = kv.shape[4], []
        for i, prompt in enumerate(prompts):
            held = self._held.get(tuple(prompt))
            known.append(0 if held is None else len(held.ids))
            if held is not None:
                to, of = width - len(prompt), held.begin
                kv[:, :, i, :, to : to + known[i]] = held.kv[:, :, held.row, :, of : of + known[i]]
        return known


class KeptTurns:
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
        """Take over what rows left behind; `rows` are their tokens, the last of which nobody has read."""
        used = sum(_size(kv) for kv in {id(h.kv): h.kv for h in self._held.values()}.values())
        for leaving in leaves:
            used += _size(leaving.kv)
            if used > self.limit:
                return
            for place, row in enumerate(leaving.rows):
                ids, begin = tuple(rows[row][:-1]), leaving.begin[place]
                self._held[names[row]] = _Held(ids, leaving.kv, place, begin)


@dataclass(frozen=True)
class Leaving:
    """Keys and values of rows that have ended, [layers,2,N,kv_heads,slots,d], and the slot in which each begins."""

    rows: tuple[int, ...]
    kv: torch.Tensor
    begin: tuple[int, ...]


def leave(decoder: Any, index_n: torch.Tensor, rows: Sequence[int], prompt_lengths: Sequence[int]) -> Leaving:
    """Return what the rows `index_n` of `decoder` leave behind; `rows` are their numbers among all rows."""
    begin = tuple(decoder.layout.width - length for length in prompt_lengths)
    return Leaving(tuple(rows), decoder.written(index_n), begin)


def _size(kv: torch.Tensor) -> int:
    return kv.numel() * kv.element_size()
