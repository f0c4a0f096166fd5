"""Vectors over the weights of a sharded policy: each rank holds the numbers of its own pieces, rank 0 their names.

Those that a checkpoint is to hold are entries of the optimiser's state, which is written, read and divided anew as the
weights are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from grouprl.policy.sharded.piece_optimizer import OPTIMIZER, PieceOptimizer
from grouprl.policy.sharded.pieces import copies, local
from grouprl.policy.sharded.rank_work import POLICY, distributed
from grouprl.policy.sharded.ranks import Ranks, Station
from grouprl.protocols.vectors import in_memory

VECTORS = "vectors"
"""Name of a rank's pieces of vectors, by their numbers."""
Pieces = list[Tensor]
Operation = Callable[[Tensor, object], Tensor]


@dataclass(frozen=True)
class Formula:
    """A vector formed from another and a third one or a number; vectors no longer needed are released."""

    operation: Operation
    left: int
    right: int
    scalar: float | None
    result: int
    dropped: tuple[int, ...]


@dataclass(frozen=True)
class KeptVector:
    """The number of a vector, and the name under which the optimiser's state keeps it."""

    number: int
    name: str


def _vectors(station: Station) -> dict[int, Pieces]:
    found: dict[int, Pieces] = station.kept.setdefault(VECTORS, {})
    return found


def form(station: Station, share: Formula) -> None:
    """Form a vector, piece by piece."""
    held = _vectors(station)
    for number in share.dropped:
        held.pop(number, None)  # what could not be recalled has never been
    others: Sequence[object] = held[share.right] if share.scalar is None else [share.scalar] * len(held[share.left])
    pairs = zip(held[share.left], others, strict=True)
    held[share.result] = [share.operation(left, right) for left, right in pairs]


def copy_weights(station: Station, number: int) -> None:
    """Make a copy of the weights a vector."""
    _vectors(station)[number] = [local(each).clone() for each in station.kept[POLICY].parameters()]


def copy_gradient(station: Station, number: int) -> None:
    """Make a copy of the gradient a vector."""
    _vectors(station)[number] = [
        torch.zeros_like(local(each)) if each.grad is None else local(each.grad).clone()
        for each in station.kept[POLICY].parameters()
    ]


def clear(station: Station, share: None) -> None:
    """Remove all gradients."""
    for parameter in station.kept[POLICY].parameters():
        parameter.grad = None


@torch.no_grad()
def write(station: Station, number: int) -> None:
    """Make the numbers of a vector the weights."""
    for parameter, piece in zip(station.kept[POLICY].parameters(), _vectors(station)[number], strict=True):
        local(parameter).copy_(piece)


def norm(station: Station, number: int) -> float:
    """Return the length of a vector over all ranks."""
    total = torch.zeros((), dtype=torch.float64)
    for parameter, piece in zip(station.kept[POLICY].parameters(), _vectors(station)[number], strict=True):
        # The sum below runs over ranks, so a piece that several of them hold would otherwise count several times.
        total += (piece.double().square().sum() / copies(parameter, station.count)).cpu()
    total = total.to(station.device)
    dist.all_reduce(total, group=station.everyone)
    return float(total.sqrt())


def has_any(station: Station, number: int) -> bool:
    """Return whether any number of this rank's pieces is not 0."""
    return any(bool(piece.any()) for piece in _vectors(station)[number])


def keep(station: Station, share: KeptVector) -> None:
    """Make the pieces of a vector entries of the optimiser's state."""
    own: PieceOptimizer = station.kept[OPTIMIZER]
    for piece, value in zip(own.pieces, _vectors(station)[share.number], strict=True):
        if piece.numel():
            own.optimizer.state[piece][in_memory(share.name)] = value


def recall(station: Station, share: KeptVector) -> bool:
    """Make entries of the optimiser's state a vector; return whether there are any."""
    own: PieceOptimizer = station.kept[OPTIMIZER]
    states, name = [own.optimizer.state.get(piece, {}) for piece in own.pieces], in_memory(share.name)
    _vectors(station)[share.number] = [
        state.get(name, torch.zeros_like(piece)) for state, piece in zip(states, own.pieces, strict=True)
    ]
    return any(name in state for state in states)


@torch.no_grad()
def spread(station: Station, share: tuple[int, Tensor | None]) -> None:
    """Divide a whole vector [P], which only rank 0 has."""
    number, whole_p = share
    own: PieceOptimizer = station.kept[OPTIMIZER]
    pieces, at = [], 0
    for whole, piece in zip(own.wholes, own.pieces, strict=True):
        size = whole.numel()
        given = torch.empty(whole.shape, dtype=whole.dtype)
        if whole_p is not None:
            given = whole_p[at : at + size].view(whole.shape)
        at += size
        own_piece = distributed(given.to(station.device, whole.dtype), whole, station)
        pieces.append(own_piece.to(piece.device, copy=True))  # not a view, which would keep the whole
    _vectors(station)[number] = pieces


class SpreadVector:
    """A vector whose pieces the ranks hold; see `grouprl.protocols.vectors.Vector`."""

    def __init__(self, space: SpreadVectors, number: int) -> None:
        self._space, self.number = space, number

    def __add__(self, other: SpreadVector) -> SpreadVector:
        return self._space.formed(operator.add, self, other)

    def __sub__(self, other: SpreadVector) -> SpreadVector:
        return self._space.formed(operator.sub, self, other)

    def __rmul__(self, factor: float) -> SpreadVector:
        return self._space.formed(operator.mul, self, factor)

    def __truediv__(self, divisor: float) -> SpreadVector:
        return self._space.formed(operator.truediv, self, divisor)

    def norm(self) -> float:
        """Return the Euclidean length."""
        return self._space.ranks.each(norm, self.number)[0]

    def any(self) -> bool:
        """Return whether any number is not 0."""
        return any(self._space.ranks.each(has_any, self.number))

    def __del__(self) -> None:
        self._space.dropped.append(self.number)  # the ranks learn of it with the next formula


class SpreadVectors:
    """The vectors over the weights of a sharded policy; see `grouprl.protocols.vectors.VectorSpace`.

    Args:
        ranks: the ranks of the policy.
        changed: function that is called when weights have been written.
        store: memory in which one process kept vectors whole.
    """

    def __init__(self, ranks: Ranks, changed: Callable[[], None], store: dict[str, Tensor]) -> None:
        self.ranks, self._changed, self._store = ranks, changed, store
        self.dropped: list[int] = []
        self._next = 0

    @property
    def eps(self) -> float:
        """The distance from 1 to the next number of the weights' type."""
        first = next(iter(self.ranks.station.kept[POLICY].parameters()))
        return float(torch.finfo(first.dtype).eps)

    def formed(self, operation: Operation, left: SpreadVector, right: SpreadVector | float) -> SpreadVector:
        """Return the vector that an operation makes of a vector and of another one or a number."""
        dropped, self.dropped = tuple(self.dropped), []
        found = self._new()
        other, scalar = (right.number, None) if isinstance(right, SpreadVector) else (-1, float(right))
        self.ranks.each(form, Formula(operation, left.number, other, scalar, found.number, dropped))
        return found

    def weights(self) -> SpreadVector:
        """Return a copy of the weights as they are."""
        self.ranks.each(copy_weights, (found := self._new()).number)
        return found

    def gradient(self) -> SpreadVector:
        """Return a copy of the gradient; 0 for weights without one."""
        self.ranks.each(copy_gradient, (found := self._new()).number)
        return found

    def zeros(self) -> SpreadVector:
        """Return a vector of zeros."""
        return 0.0 * self.weights()

    def write(self, value: SpreadVector) -> None:
        """Make the numbers of a vector the weights."""
        self.ranks.each(write, value.number)
        self._changed()

    def clear(self) -> None:
        """Remove all gradients."""
        self.ranks.each(clear)

    def keep(self, name: str, value: SpreadVector) -> None:
        """Keep a vector under a name; it is in the run's checkpoints."""
        self._store.pop(name, None)
        self.ranks.each(keep, KeptVector(value.number, name))

    def kept(self, name: str) -> SpreadVector | None:
        """Return the vector of a name, however many processes kept it; None if there is none."""
        found = self._new()
        if name in self._store:
            whole = [self._store[name], *[None] * (self.ranks.count - 1)]
            self.ranks.call(spread, [(found.number, each) for each in whole])
            return found
        return found if any(self.ranks.each(recall, KeptVector(found.number, name))) else None

    def _new(self) -> SpreadVector:
        self._next += 1
        return SpreadVector(self, self._next)


def forget(station: Station, share: None) -> None:
    """Release all vectors that are not kept."""
    station.kept.pop(VECTORS, None)
