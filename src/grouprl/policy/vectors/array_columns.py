"""Columns of rows: arrays, or arrays by name, padded, joined and stacked alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from grouprl.core.errors import InputError

Arrays: TypeAlias = Tensor | Mapping[str, Tensor]
"""An array, or named arrays (of a `DictSpace`)."""
A = TypeVar("A", bound=Arrays)
SEEDS = 2**64
"""Exclusive upper bound of seeds; tensors hold them as int64, modulo this."""


def each(arrays: A, change: Callable[[Tensor], Tensor]) -> A:
    """Return the result of `change` for an array, or for each of several named arrays."""
    if isinstance(arrays, Tensor):
        return cast("A", change(arrays))
    return cast("A", {name: change(x) for name, x in cast("Mapping[str, Tensor]", arrays).items()})


def joined(parts: Sequence[A]) -> A:
    """Concatenate arrays, or named arrays name by name, along the rows. Raises InputError if names differ."""
    if isinstance(parts[0], Tensor):
        return cast("A", torch.cat(list(cast("Sequence[Tensor]", parts))))
    first, *rest = cast("Sequence[Mapping[str, Tensor]]", parts)
    if any(part.keys() != first.keys() for part in rest):
        raise InputError(
            f"arrays are named {sorted(first)} and {[sorted(part) for part in rest]}",
            "rows of one batch must have arrays of the same names",
        )
    return cast("A", {name: torch.cat([x, *(part[name] for part in rest)]) for name, x in first.items()})


def all_or_none(name: str, parts: Sequence[A | None]) -> A | None:
    """Return the joined values of all parts; None if no part has one."""
    known = [part for part in parts if part is not None]
    if known and len(known) < len(parts):
        raise InputError(
            f"{name} is None in some rows", "rows of one batch must all have it or all lack it", "Give it to all rows"
        )
    return joined(known) if known else None


def signed(seed: int) -> int:
    """Return a 64-bit seed as the int64 with the same bits."""
    return (seed + SEEDS // 2) % SEEDS - SEEDS // 2


def listed(arrays: Arrays | None) -> list[Tensor]:
    """Return the arrays of named ones, or the single one; none for None."""
    if arrays is None:
        return []
    return [arrays] if isinstance(arrays, Tensor) else list(arrays.values())


def tensor(row: object) -> Tensor:
    """Return a row of numbers as a tensor: float32, int64, or bytes and truth values as they are."""
    found = torch.as_tensor(np.asarray(row))
    if found.is_floating_point():
        return found.to(torch.float32)
    return found if found.dtype in (torch.uint8, torch.bool) else found.to(torch.int64)


def tensors(rows: Sequence[object]) -> list[Tensor]:
    """Return rows of numbers as tensors; those of one type, and of one shape but for their lengths, are converted
    together.
    """
    arrays = [np.asarray(row) for row in rows]
    if not arrays or not arrays[0].ndim or len({(array.dtype, array.shape[1:]) for array in arrays}) > 1:
        return [tensor(array) for array in arrays]
    return list(tensor(np.concatenate(arrays)).split([len(array) for array in arrays]))


def together(rows: Sequence[object], put: Callable[[list[Tensor]], Tensor]) -> Arrays:
    """Join rows with `put`, name by name if they hold named arrays."""
    if not rows or not isinstance(rows[0], Mapping):
        return put(tensors(rows))
    named = cast("Sequence[Mapping[str, object]]", rows)
    return {name: put(tensors([row[name] for row in named])) for name in named[0]}


def some(masks: Sequence[Tensor | None]) -> bool:
    """Return whether any mask is given."""
    return any(mask is not None for mask in masks)


def full(masks: Sequence[Tensor | None], sizes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Return masks, with all ones in place of None; `sizes` are the shapes of the masks without the axis of actions."""
    count = next(mask.shape[-1] for mask in masks if mask is not None)
    ones = [torch.ones(*size, count, dtype=torch.bool) for size in sizes]
    return [one if mask is None else mask for mask, one in zip(masks, ones, strict=True)]


def padded(rows: Sequence[Tensor]) -> Tensor:
    """Return rows [T_b,…] as [B,T,…], with zeros beyond their lengths."""
    if not rows:
        return torch.zeros(0, 0, 0)
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def wider(values: Tensor, width: int) -> Tensor:
    """Return values [B,T,…] with `width` places, zeros in the further ones."""
    spare = [0, 0] * (values.dim() - 2)
    return torch.nn.functional.pad(values, (*spare, 0, width - values.shape[1]))


def origins(actions: Sequence[Tensor], given: Sequence[Sequence[object]] | None) -> list[Tensor]:
    """Return what each action [A] of rows [T_b,A] was made of; NaN where it is not given."""
    found = [torch.full(tuple(row.shape), torch.nan) for row in actions]
    for row_ta, of_row in zip(found, given or (), strict=True):
        for step, origin in enumerate(of_row):
            if origin is not None:
                row_ta[step] = torch.as_tensor(np.asarray(origin, dtype=np.float32))
    return found
