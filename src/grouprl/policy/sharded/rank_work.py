"""The work that rank 0 requests of ranks: functions of a rank's station and its share (see
`grouprl.policy.sharded.ranks`).

A rank keeps by name its part of the policy in training, its part of the reference, the optimiser of its part, the
builders of policies, and, where it samples, a full copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from grouprl.policy.language.transformer_model import TransformerModel
from grouprl.policy.sharded.pieces import copies, local, piece_of
from grouprl.policy.sharded.rank_model import RankModel
from grouprl.policy.sharded.ranks import Station
from grouprl.policy.state import between
from grouprl.policy.thinning import thinned
from grouprl.records.tokens import Tokens

POLICY, REFERENCE, WHOLE, BUILD, ASIDE, SEEN = "policy", "reference", "whole", "build", "aside", "seen gradients"
BUILD_REFERENCE = "build reference"
"""The name of the builders of a reference that is not a copy of the policy."""
NOTHING = Tokens(((0, 0),), ((0, 0),))
"""The dummy row of an empty pass: a layer's weights are gathered from all ranks, so one without rows must pass, too."""


class Builders(Protocol):
    """Builder of a rank's models, the same on all ranks; rank 0 sends it to them."""

    def part(self, station: Station) -> RankModel:
        """Return the rank's part of the model."""
        ...

    def whole(self, station: Station) -> TransformerModel:
        """Return a full copy of the model."""
        ...


@dataclass(frozen=True)
class Scoring:
    """Passes of one rank whose outputs are requested; None stands for an empty pass."""

    passes: Sequence[Tokens | None]
    names: tuple[str, ...]
    name: str = POLICY
    base: bool = False
    """Whether to switch adapters off."""


@dataclass(frozen=True)
class Load:
    """Weights for the policy or copy of a name: `names` of parameters, and their state, which only rank 0 has."""

    name: str
    names: tuple[str, ...]
    state: Mapping[str, Tensor] | None


@dataclass(frozen=True)
class Pull:
    """Passes of one rank for `pull`, each with the cotangents of its outputs [B,T]."""

    passes: Sequence[tuple[Tokens, dict[str, Tensor]] | None]
    names: tuple[str, ...]
    seed: int | None
    """Seed of the adapters' dropout; None if they have none."""


@dataclass(frozen=True)
class Passes:
    """Pieces of an optimiser step for one rank, each given to `function` with the rank's policy and `common`."""

    function: Callable[..., object]
    common: object
    pieces: Sequence[object]
    names: tuple[str, ...]
    seed: int | None


def build(station: Station, builders: Builders) -> None:
    """Build the rank's part of the policy."""
    station.kept.pop(WHOLE, None)
    station.kept[BUILD] = builders
    station.kept[POLICY] = builders.part(station)


def build_whole(station: Station, everywhere: bool) -> None:
    """Build a full copy of the policy, on all ranks or on the first alone, where there is none."""
    if WHOLE not in station.kept and (everywhere or station.rank == 0):
        station.kept[WHOLE] = station.kept[BUILD].whole(station)
        station.kept[WHOLE].model.requires_grad_(False)


def set_temperature(station: Station, temperature: float) -> None:
    """Set the temperature of the policy's log-probs."""
    station.kept[POLICY].temperature = temperature


def keep_copy(station: Station, name: str) -> None:
    """Keep a copy of the current policy, in parts, under `name`."""
    # Built anew rather than copied: a divided module has hooks that refer to its own parameters.
    found = station.kept[BUILD].part(station)
    if name == REFERENCE:
        station.kept.pop(BUILD_REFERENCE, None)
    with torch.no_grad():
        pairs = zip(found.named_parameters(), station.kept[POLICY].named_parameters(), strict=True)
        for (_, parameter), (_, own) in pairs:
            local(parameter).copy_(local(own))
    station.kept[name] = found


@dataclass(frozen=True)
class Move:
    """A step of the copy `name` by `share` of the way to the policy."""

    name: str
    share: float


@torch.no_grad()
def move(station: Station, share: Move) -> None:
    """Move a copy's weights towards the policy's; each rank moves its own part."""
    pairs = zip(station.kept[share.name].named_parameters(), station.kept[POLICY].named_parameters(), strict=True)
    for (_, parameter), (_, own) in pairs:
        local(parameter).copy_(between(local(parameter), local(own), share.share))


def score(station: Station, share: Scoring) -> list[dict[str, Tensor]]:
    """Return the outputs of each pass, [M] each, on the CPU."""
    policy, found = station.kept[share.name], []
    with policy.model.disable_adapter() if share.base else nullcontext(), torch.no_grad():
        for tokens in share.passes:
            outputs = policy._run(NOTHING if tokens is None else tokens, share.names)
            if tokens is not None:
                found.append({name: x.cpu() for name, x in outputs.items()})
    return found


def hidden(station: Station, share: Sequence[Tokens | None]) -> list[Tensor]:
    """Return the last hidden states of the response tokens of each pass, [M,H], on the CPU."""
    policy, found = station.kept[POLICY], []
    for tokens in share:
        readout = policy.read(NOTHING if tokens is None else tokens)
        states_md = readout.hidden_md  # ranks that share rows bring them together here
        if tokens is not None:
            found.append(states_md.to("cpu", policy.score_dtype))
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


def run_passes(station: Station, share: Passes) -> list[object]:
    """Call the function, which runs forward and backward once, for each piece; return its results."""
    policy, found = station.kept[POLICY], []
    with _gradients(station, share.seed):
        for piece in share.pieces:
            if piece is None:
                _pass_of_nothing(policy, share.names)
            else:
                found.append(share.function(policy, share.common, piece))
    return found


def clip(station: Station, limit: float) -> float:
    """Scale the gradient to a norm of at most `limit`; return the norm that it had before."""
    parameters = station.kept[POLICY].parameters()
    # The sum below runs over ranks, so a piece that several of them hold would otherwise count several times.
    squares = [
        local(p.grad).double().square().sum() / copies(p, station.count) for p in parameters if p.grad is not None
    ]
    total = torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)
    total = total.to(station.device)
    dist.all_reduce(total, group=station.everyone)
    norm = float(total.sqrt())
    scale = min(1.0, limit / (norm + 1e-6))  # the same formula as torch.nn.utils.clip_grad_norm_
    if scale < 1:
        for parameter in parameters:
            if parameter.grad is not None:
                local(parameter.grad).mul_(scale)
    return norm


def put_aside(station: Station, share: None) -> None:
    """Put the gradient of the policy aside, so that there is none."""
    parameters = station.kept[POLICY].parameters()
    station.kept[ASIDE] = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None


def along_aside(station: Station, share: None) -> float:
    """Return the product of the gradient with the one that was put aside, over all ranks, and zero the former."""
    total = torch.zeros((), dtype=torch.float64)
    for parameter, aside in zip(station.kept[POLICY].parameters(), station.kept[ASIDE], strict=True):
        if parameter.grad is not None and aside is not None:
            along = local(parameter.grad).double() * local(aside)
            total += (along.sum() / copies(parameter, station.count)).cpu()
        parameter.grad = None
    total = total.to(station.device)
    dist.all_reduce(total, group=station.everyone)
    return float(total)


def take_back(station: Station, share: None) -> None:
    """Make the gradient that was put aside the policy's again."""
    for parameter, aside in zip(station.kept[POLICY].parameters(), station.kept.pop(ASIDE), strict=True):
        parameter.grad = aside


@dataclass(frozen=True)
class GradientLook:
    """A request to add one entry in `every` of the policy's gradient to the sum, which the `first` one begins."""

    every: int
    first: bool


def look(station: Station, share: GradientLook) -> tuple[float, float]:
    """Add the gradient to the sum; return the squared norms of both, of the entries looked at on all ranks."""
    parameters = list(station.kept[POLICY].parameters())
    now = thinned([_gradient(each) for each in parameters], share.every)
    kept = now if share.first else [one + other for one, other in zip(station.kept[SEEN], now, strict=True)]
    station.kept[SEEN] = kept
    often = [copies(each, station.count) for each in parameters]  # ranks that hold the same piece count it once
    found = torch.stack([_square(zip(now, often, strict=True)), _square(zip(kept, often, strict=True))])
    found = found.to(station.device)
    dist.all_reduce(found, group=station.everyone)
    return float(found[0]), float(found[1])


def _gradient(parameter: Tensor) -> Tensor:
    """Return this rank's piece of a gradient; zeros for a missing one."""
    return torch.zeros_like(local(parameter)) if parameter.grad is None else local(parameter.grad)


def _square(pieces: Iterable[tuple[Tensor, int]]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    return sum((piece.double().square().sum() / often for piece, often in pieces), total)


@dataclass(frozen=True)
class Gather:
    """Parameters, by their names, of the policy or copy called `name`."""

    name: str
    parameters: tuple[str, ...]


def gather(station: Station, share: Gather) -> dict[str, Tensor] | None:
    """Return parameters whole and on the CPU, by their names; None on all ranks but the first."""
    own, found = station.kept[share.name].every_parameter(), {}
    for name in share.parameters:
        tensor = own[name].detach().full_tensor()  # every rank takes part, and holds one at a time
        if station.rank == 0:
            # On one rank the whole may be the parameter's own memory, which the next step changes.
            shared = tensor.untyped_storage().data_ptr() == local(own[name]).untyped_storage().data_ptr()
            found[name] = tensor.to("cpu", copy=shared)
    return found if station.rank == 0 else None


@torch.no_grad()
def renew_whole(station: Station, name: str) -> None:
    """Copy the weights of the policy, or of the copy called `name`, into the full copy of each rank that has one."""
    fill_whole(station.kept[name], station.kept.get(WHOLE))


@torch.no_grad()
def fill_whole(part: RankModel, whole: TransformerModel | None) -> None:
    """Copy the weights of which this rank holds a part into a whole model; None: only help the others to do so."""
    copies = {} if whole is None else dict(whole.model.named_parameters())
    for name, parameter in part.named_parameters():
        tensor = cast("DTensor", parameter.detach()).full_tensor()
        if name in copies:  # a value head is not copied: sampling does not use it
            copies[name].copy_(tensor)


@torch.no_grad()
def load(station: Station, share: Load) -> None:
    """Distribute a state, which only rank 0 has, over the ranks' parameters."""
    held = dict(station.kept[share.name].named_parameters())
    for name in share.names:
        parameter = held[name]
        whole = torch.empty(parameter.shape, dtype=parameter.dtype) if share.state is None else share.state[name]
        local(parameter).copy_(distributed(whole.to(station.device, parameter.dtype), parameter, station))


def distributed(whole: Tensor, like: DTensor, station: Station) -> Tensor:
    """Return this rank's piece of rank 0's tensor `whole`, divided as `like` is."""
    whole = whole.contiguous()
    dist.broadcast(whole, src=0, group=station.everyone)
    return piece_of(whole, like)


def _pass_of_nothing(policy: RankModel, names: Sequence[str]) -> None:
    """Run forward and backward together with the other ranks, without adding to any gradient."""
    with torch.enable_grad():
        outputs = [x for x in policy._run(NOTHING, names).values() if x.requires_grad]
    # Gradients are summed over the ranks inside of backward: without this call the others would wait for ever.
    torch.autograd.backward(outputs, [torch.zeros_like(x) for x in outputs])


@contextmanager
def _gradients(station: Station, seed: int | None) -> Iterator[None]:
    """Give every parameter a gradient to add to, on all ranks alike, and seed dropout differently on each rank."""
    for parameter in station.kept[POLICY].parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed + station.rank)
        yield
