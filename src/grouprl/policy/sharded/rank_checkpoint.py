"""Each rank writes and reads its own part of a checkpoint."""

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
from grouprl.storage.shards import MEMORY, WEIGHTS, names_and_shapes, read_parts, write_parts


def save_parts(ranks: Ranks, folder: Path) -> None:
    """Write weights and optimiser state from all ranks into `folder`; raises OSError where one could not."""
    failed = next((found for found in ranks.each(_save, folder) if found is not None), None)
    if failed is not None:
        raise OSError(*failed)


def load_parts(ranks: Ranks, parameters: Mapping[str, Tensor], folder: Path) -> None:
    """Read weights and optimiser state on all ranks.

    Raises:
        RunError: they cannot be read.
        InputError: they do not fit `parameters`.
    """
    shapes = {name: shape for name, (shape, _) in names_and_shapes(folder).items() if name.startswith(WEIGHTS)}
    stored = {name.removeprefix(WEIGHTS): torch.empty(shape, device="meta") for name, shape in shapes.items()}
    check_state(parameters, stored)
    ranks.each(_load, folder)


def _save(station: Station, folder: Path) -> tuple[int, str] | None:
    """Write this rank's parts; an error is told to rank 0, which tells the user: every rank has met it."""
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
    """Return where something that the optimiser remembers is read to: distributed where it has the weights' shape."""
    if shape != tuple(whole.shape):
        return torch.zeros(shape, dtype=dtype)
    return torch.zeros_like(whole, dtype=dtype)


def _group(station: Station) -> object:
    return station.answers
