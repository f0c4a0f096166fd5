"""Checkpoints of which each rank writes and reads its own part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from grouprl.policy.sharded.piece_optimizer import OPTIMIZER, PieceOptimizer, StateKey
from grouprl.policy.sharded.rank_work import POLICY
from grouprl.policy.sharded.ranks import Ranks, Station
from grouprl.policy.state import check_state
from grouprl.storage.shards import MEMORY, WEIGHTS, check_parts, names_and_shapes, read_parts, write_parts


def save_parts(ranks: Ranks, folder: Path) -> None:
    """Write weights and optimiser state from all ranks into `folder`.

    Raises:
        OSError: one of them could not.
        RunError: this rank does not see what another one has written.
    """
    failed = next((found for found in ranks.each(_save, folder) if found is not None), None)
    if failed is not None:
        raise OSError(*failed)
    check_parts(folder)


def load_parts(ranks: Ranks, parameters: Mapping[str, Tensor], folder: Path) -> None:
    """Read weights and optimiser state on all ranks.

    Raises:
        RunError: the files cannot be read.
        InputError: the files do not fit `parameters`.
    """
    shapes = {name: shape for name, (shape, _) in names_and_shapes(folder).items() if name.startswith(WEIGHTS)}
    stored = {name.removeprefix(WEIGHTS): torch.empty(shape, device="meta") for name, shape in shapes.items()}
    check_state(parameters, stored)
    ranks.each(_load, folder)


def _save(station: Station, folder: Path) -> tuple[int, str] | None:
    """Write this rank's parts; return an error for rank 0 to report, since every rank gets the same one."""
    own: PieceOptimizer = station.kept[OPTIMIZER]
    state: dict[str, Tensor] = {f"{WEIGHTS}{n}": p.detach() for n, p in station.kept[POLICY].named_parameters()}
    state |= {f"{MEMORY}{number}/{name}": value for (number, name), value in own.state().items()}
    try:
        write_parts(state, folder, _group(station))
    except OSError as error:
        return error.errno or 0, str(error.strerror)
    return None


@torch.no_grad()
def _load(station: Station, folder: Path) -> None:
    own: PieceOptimizer = station.kept[OPTIMIZER]
    state: dict[str, Tensor] = {f"{WEIGHTS}{n}": p.detach() for n, p in station.kept[POLICY].named_parameters()}
    own.load({})  # before there are two
    memory: dict[StateKey, Tensor] = {}
    for full, (shape, dtype) in names_and_shapes(folder).items():
        if not full.startswith(MEMORY):
            continue
        number, _, name = full.removeprefix(MEMORY).partition("/")
        memory[int(number), name] = _room(own.wholes[int(number)], shape, dtype)
    state |= {f"{MEMORY}{number}/{name}": value for (number, name), value in memory.items()}
    read_parts(state, folder, _group(station))
    own.load(memory)


def _room(whole: DTensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return an empty tensor to read an entry of the optimiser's state into, distributed if it has the shape of the
    weights.
    """
    if shape != tuple(whole.shape):
        return torch.zeros(shape, dtype=dtype)
    return torch.zeros_like(whole, dtype=dtype)


def _group(station: Station) -> object:
    return station.answers
