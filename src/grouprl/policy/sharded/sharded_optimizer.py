"""An optimiser whose state is divided among the ranks: each steps its own pieces of the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from grouprl.core.errors import InputError
from grouprl.core.json_types import State
from grouprl.core.spans import spanned
from grouprl.policy.optimizers import BY_ELEMENT
from grouprl.policy.sharded import rank_work as work
from grouprl.policy.sharded.piece_optimizer import OPTIMIZER, Make, PieceOptimizer, StateKey
from grouprl.policy.sharded.rank_work import distributed
from grouprl.policy.sharded.ranks import Station
from grouprl.policy.sharded.sharded_model import ShardedModel

Found = TypeVar("Found")


class ShardedOptimizer(torch.optim.Optimizer):
    """The optimiser of a sharded model, as rank 0 sees it: learning rates are set here, steps are taken on all ranks.

    Args:
        policy: the model whose parameters are stepped.
        make: function from parameters to the optimiser of a rank's pieces; it is sent to every rank.
        name: name of the optimiser (`optim.name`).

    Raises:
        InputError: the optimiser uses more than a number's own gradients for its step.
    """

    def __init__(self, policy: ShardedModel, make: Make, name: str) -> None:
        if name not in BY_ELEMENT:
            raise InputError(
                f"optim.name = {name} on several ranks",
                "it needs whole matrices, but each rank holds only pieces of them",
                f"Take one of {', '.join(BY_ELEMENT)}",
            )
        self._policy = policy
        policy.ranks.each(_make, make)
        own: PieceOptimizer = policy.ranks.station.kept[OPTIMIZER]
        super().__init__(policy.parameters(), {k: v for k, v in own.optimizer.param_groups[0].items() if k != "params"})

    @spanned("optimiser")
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Take a step on all ranks."""
        assert closure is None
        self._policy.ranks.each(_step, [group["lr"] for group in self.param_groups])
        self._policy.changed()

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Set all gradients to zero on all ranks."""
        self._policy.ranks.each(_zero)

    def load_state_dict(self, state_dict: State) -> None:
        """Distribute the `state_dict` of an optimiser of a single process."""
        found = {(n, name): x for n, own in state_dict["state"].items() for name, x in own.items() if x is not None}
        shapes = {key: tuple(value.shape) for key, value in found.items()}
        ranks = self._policy.ranks
        ranks.call(_load, [(shapes, found), *[(shapes, None)] * (ranks.count - 1)])

    def measured(self, measure: Callable[[torch.optim.Optimizer], Found]) -> list[Found]:
        """Return the result of `measure` for each rank's pieces."""
        return self._policy.ranks.each(_measure, measure)


def _make(station: Station, make: Make) -> None:
    station.kept[OPTIMIZER] = PieceOptimizer(station.kept[work.POLICY].parameters(), make, station)


def _step(station: Station, rates: list[float]) -> None:
    station.kept[OPTIMIZER].step(rates)


def _zero(station: Station, share: None) -> None:
    station.kept[OPTIMIZER].zero_grad()


def _measure(station: Station, measure: Callable[[torch.optim.Optimizer], Found]) -> Found:
    found: Found = station.kept[OPTIMIZER].measured(measure)
    return found


def _load(station: Station, share: tuple[dict[StateKey, tuple[int, ...]], dict[StateKey, Tensor] | None]) -> None:
    """Distribute rank 0's state; entries without a parameter's shape are the same on all ranks."""
    shapes, state = share
    own: PieceOptimizer = station.kept[OPTIMIZER]
    found: dict[StateKey, Tensor] = {}
    for (number, name), shape in shapes.items():
        whole = own.wholes[number]
        value = torch.empty(shape, dtype=whole.dtype) if state is None else state[number, name]
        if shape == tuple(whole.shape):
            piece = distributed(value.to(station.device, whole.dtype), whole, station)
            found[number, name] = piece.to(whole.device, copy=True)  # not a view, which would keep the whole
        else:
            found[number, name] = _same_everywhere(value, station).clone()
    own.load(found)


def _same_everywhere(value: Tensor, station: Station) -> Tensor:
    box = [value]
    torch.distributed.broadcast_object_list(box, src=0, group=station.answers)
    return box[0]
