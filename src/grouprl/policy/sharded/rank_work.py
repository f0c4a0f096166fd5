"""The work that rank 0 calls for: functions of a rank's station and its share (see `grouprl.policy.sharded.ranks`).

What a rank keeps by name: its part of the policy in training, that of the reference, a whole copy to sample from, the
optimiser of its part, and what builds policies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.sharded.rank_policy import RankPolicy
from grouprl.policy.sharded.ranks import Station
from grouprl.records.tokens import Tokens

POLICY, REFERENCE, WHOLE, BUILD = "policy", "reference", "whole", "build"
NOTHING = Tokens(((0, 0),), ((0, 0),))
"""The row of a pass of nothing."""


class Builders(Protocol):
    """What builds a rank's policies, alike on all ranks; it is sent to them."""

    def part(self, station: Station) -> RankPolicy:
        """Return the rank's part of the policy."""
        ...

    def whole(self, station: Station) -> CausalPolicy:
        """Return a whole copy of it."""
        ...


@dataclass(frozen=True)
class Scoring:
    """Passes of one rank whose outputs are wanted; None: a pass of nothing."""

    passes: Sequence[Tokens | None]
    names: tuple[str, ...]
    name: str = POLICY
    base: bool = False
    """Whether adapters are switched off."""


@dataclass(frozen=True)
class Pull:
    """Passes of one rank, each with the cotangents of its outputs [B,T], to be pulled back."""

    passes: Sequence[tuple[Tokens, dict[str, Tensor]] | None]
    names: tuple[str, ...]
    seed: int | None
    """Of the adapters' dropout; None: there is none."""


@dataclass(frozen=True)
class Passes:
    """Pieces of an optimiser step for one rank, each given to `function` with the rank's policy and `common`."""

    function: Callable[..., Mapping[str, float]]
    common: object
    pieces: Sequence[object]
    names: tuple[str, ...]
    seed: int | None


def build(station: Station, builders: Builders) -> None:
    """Make the rank's part of the policy and the whole copy."""
    station.kept[BUILD] = builders
    station.kept[POLICY], station.kept[WHOLE] = builders.part(station), builders.whole(station)
    station.kept[WHOLE].model.requires_grad_(False)


def keep_reference(station: Station, share: None) -> None:
    """Keep the policy as it is now, in parts, as the reference."""
    found = station.kept[BUILD].part(station)
    with torch.no_grad():
        pairs = zip(found.named_parameters(), station.kept[POLICY].named_parameters(), strict=True)
        for (_, parameter), (_, own) in pairs:
            local(parameter).copy_(local(own))
    station.kept[REFERENCE] = found


def score(station: Station, share: Scoring) -> list[dict[str, Tensor]]:
    """Return outputs of each pass, [M] each, on the CPU."""
    policy, found = station.kept[share.name], []
    with policy.model.disable_adapter() if share.base else nullcontext(), torch.no_grad():
        for tokens in share.passes:
            outputs = policy._run(NOTHING if tokens is None else tokens, share.names)
            if tokens is not None:
                found.append({name: x.cpu() for name, x in outputs.items()})
    return found


def pull(station: Station, share: Pull) -> None:
    """Add the gradient of sum(cotangent * output) over all ranks' passes to each rank's part of `.grad`."""
    policy = station.kept[POLICY]
    with _gradients(station, share.seed):
        for piece in share.passes:
            if piece is None:
                _pass_of_nothing(policy, share.names)
            else:
                tokens, cotangents = piece
                policy._backward_pass(tokens, {name: c.to(policy.device) for name, c in cotangents.items()})


def run_passes(station: Station, share: Passes) -> list[Mapping[str, float]]:
    """Give each piece to the function, which goes forward and backward once; return what it found of each."""
    policy, found = station.kept[POLICY], []
    with _gradients(station, share.seed):
        for piece in share.pieces:
            if piece is None:
                _pass_of_nothing(policy, share.names)
            else:
                found.append(share.function(policy, share.common, piece))
    return found


def clip(station: Station, limit: float) -> float:
    """Scale the gradient to a norm of at most `limit`; return its norm before."""
    parameters = station.kept[POLICY].parameters()
    squares = [local(p.grad).double().square().sum() / copies(p, station) for p in parameters if p.grad is not None]
    total = torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)
    total = total.to(station.device)
    dist.all_reduce(total, group=station.everyone)
    norm = float(total.sqrt())
    scale = min(1.0, limit / (norm + 1e-6))  # as torch.nn.utils.clip_grad_norm_ has it
    if scale < 1:
        for parameter in parameters:
            if parameter.grad is not None:
                local(parameter.grad).mul_(scale)
    return norm


def gather(station: Station, share: None) -> dict[str, Tensor] | None:
    """Return all trainable parameters, whole and on the CPU, by name; None on all ranks but the first."""
    found = {}
    for name, parameter in station.kept[POLICY].named_parameters():
        tensor = parameter.detach().full_tensor()
        if station.rank == 0:
            found[name] = tensor.cpu().clone()
    return found if station.rank == 0 else None


@torch.no_grad()
def renew_whole(station: Station, share: None) -> None:
    """Copy the weights in training into the whole copy of each rank that has one."""
    copies = dict(station.kept[WHOLE].model.named_parameters()) if WHOLE in station.kept else {}
    for name, parameter in station.kept[POLICY].named_parameters():
        tensor = parameter.detach().full_tensor()
        if name in copies:  # a value head is not: it samples nothing
            copies[name].copy_(tensor)


def drop_copy(station: Station, share: None) -> None:
    """Drop the whole copy of a rank that does not lead."""
    if station.rank:
        station.kept.pop(WHOLE, None)


@torch.no_grad()
def load(station: Station, state: Mapping[str, Tensor] | None) -> None:
    """Distribute `state`, which rank 0 alone has, over the ranks' parameters."""
    for name, parameter in station.kept[POLICY].named_parameters():
        whole = torch.empty(parameter.shape, dtype=parameter.dtype) if state is None else state[name]
        local(parameter).copy_(distributed(whole.to(station.device, parameter.dtype), parameter, station))


def distributed(whole: Tensor, like: DTensor, station: Station) -> Tensor:
    """Return this rank's piece of `whole`, which counts on rank 0, cut as `like` is."""
    whole = whole.contiguous()
    dist.broadcast(whole, src=0, group=station.everyone)
    return piece_of(whole, like)


def piece_of(whole: Tensor, like: DTensor) -> Tensor:
    """Return this rank's piece of `whole`, cut as `like` is: matrices among a row of ranks first, then over columns."""
    mesh, at = like.device_mesh, like.device_mesh.get_coordinate()
    assert at is not None
    for dim in reversed(range(mesh.ndim)):
        placement = like.placements[dim]
        if isinstance(placement, Shard | _StridedShard):
            pieces = whole.chunk(mesh.size(dim), placement.dim)
            whole = pieces[at[dim]] if at[dim] < len(pieces) else whole.narrow(placement.dim, 0, 0)
    return whole


def copies(tensor: Tensor, station: Station) -> int:
    """Return on how many ranks each piece of a distributed tensor lies."""
    assert isinstance(tensor, DTensor)
    mesh = tensor.device_mesh
    cut = math.prod(mesh.size(dim) for dim, each in enumerate(tensor.placements) if not isinstance(each, Replicate))
    return station.count // cut


def local(tensor: Tensor) -> Tensor:
    """Return this rank's piece of a distributed tensor, which shares its memory."""
    assert isinstance(tensor, DTensor)
    return tensor.to_local().detach()


def _pass_of_nothing(policy: RankPolicy, names: Sequence[str]) -> None:
    """Go forward and backward with all the others, adding nothing."""
    with torch.enable_grad():
        outputs = [x for x in policy._run(NOTHING, names).values() if x.requires_grad]
    torch.autograd.backward(outputs, [torch.zeros_like(x) for x in outputs])


@contextmanager
def _gradients(station: Station, seed: int | None) -> Iterator[None]:
    """Give every parameter a gradient to add to, alike on all ranks, and dropout its own dice on each rank."""
    for parameter in station.kept[POLICY].parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed + station.rank)
        yield
