"""The work that rank 0 requests of ranks which hold a copy of its model: functions of a rank's station and its share.

Rank 0's own model is the true one. It takes all steps, and each piece of work begins with its weights, so that no rank
has to know what else changes them: an optimiser, statistics of observations, a search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from grouprl.core.json_types import JsonObject
from grouprl.core.plugins import load_plugins
from grouprl.policy.sharded.ranks import Station
from grouprl.policy.vectors.module_policy import TrainableModule
from grouprl.processes.parcel import unpack
from grouprl.protocols import PolicyInputs

COPY = "copy"
"""Name of a rank's copy of the model; on rank 0 the model itself."""


@dataclass(frozen=True)
class RowsToScore:
    """Rows of one rank whose outputs are requested; None if it has none."""

    inputs: PolicyInputs | None
    names: tuple[str, ...]


@dataclass(frozen=True)
class CopyPasses:
    """Pieces of an optimiser step for one rank, each given to `function` with the rank's model and `common`."""

    function: Callable[..., object]
    common: object
    pieces: Sequence[object]


def prepare(station: Station, share: tuple[tuple[str, ...], int]) -> None:
    """Load the plugins, which may define the model's class, and set the number of threads."""
    if station.rank:
        plugins, threads = share
        load_plugins(plugins)
        torch.set_num_threads(threads)


def keep(station: Station, share: TrainableModule | JsonObject) -> None:
    """Keep the model itself on rank 0, and the copy that a parcel holds on the others."""
    model: TrainableModule = share if isinstance(share, TrainableModule) else unpack(share)
    for own in vars(model).values() if station.rank else ():
        if isinstance(own, nn.Module):
            own.to(station.device)
    station.kept[COPY] = model


def score(station: Station, share: RowsToScore) -> dict[str, Tensor] | None:
    """Return the outputs of this rank's rows, on the CPU."""
    model: TrainableModule = station.kept[COPY]
    _take_weights(station, model)
    if share.inputs is None:
        return None
    return {name: x.cpu() for name, x in model.evaluate_here(share.inputs, share.names).items()}


def run_passes(station: Station, share: CopyPasses) -> list[object]:
    """Call the function, which runs forward and backward once, for each piece; return its results."""
    model: TrainableModule = station.kept[COPY]
    _take_weights(station, model)
    with _added_up(station, model):
        return [share.function(model, share.common, piece) for piece in share.pieces]


def pull(model: TrainableModule, names: object, piece: tuple[PolicyInputs, dict[str, Tensor]]) -> None:
    """Add the gradients of sum(cotangent * output) of some rows: a function for `run_passes`."""
    model.pull_here(*piece)


@torch.no_grad()
def _take_weights(station: Station, model: TrainableModule) -> None:
    """Make everything that training changes the same as on rank 0, with one message for each type of number."""
    by_type: dict[torch.dtype, list[Tensor]] = {}
    for _, value in model.named_state():
        by_type.setdefault(value.dtype, []).append(value)
    for values in by_type.values():
        flat_p = torch.cat([value.detach().reshape(-1) for value in values])
        dist.broadcast(flat_p, src=0, group=station.everyone)
        for value, part_p in zip(values, flat_p.split([v.numel() for v in values]), strict=True):
            if station.rank:
                value.copy_(part_p.view_as(value))


@contextmanager
def _added_up(station: Station, model: TrainableModule) -> Iterator[None]:
    """Add the gradients that all ranks accumulate in this context to the one that rank 0 had before."""
    parameters = model.parameters()
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:  # also after an error of one rank, for which the others would otherwise wait here
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat_p = torch.cat([grad.reshape(-1) for grad in grads])
        dist.reduce(flat_p, dst=0, group=station.everyone)
        found = flat_p.split([p.numel() for p in parameters])
        for parameter, own, part_p in zip(parameters, before, found, strict=True):
            whole = part_p.view_as(parameter) if own is None else own + part_p.view_as(parameter)
            parameter.grad = None if station.rank else whole
