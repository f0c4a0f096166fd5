"""An optimiser whose state lies in parts on the ranks: each takes the step of its own pieces of the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from grouprl.core.errors import InputError
from grouprl.core.spans import spanned
from grouprl.policy import rank_work as work
from grouprl.policy.optimizers import BY_ELEMENT
from grouprl.policy.rank_work import distributed, local
from grouprl.policy.ranks import Station
from grouprl.policy.sharded import ShardedPolicy

OPTIMIZER = "optimizer"
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
StateKey = tuple[int, str]
"""Number of a parameter, and the name of something that the optimiser remembers of it."""


class PieceOptimizer:
    """A rank's optimiser over its own pieces of the weights, which it shares memory with."""

    def __init__(self, parameters: list[nn.Parameter], make: Make) -> None:
        self.wholes = [parameter for parameter in parameters if isinstance(parameter, DTensor)]
        assert len(self.wholes) == len(parameters)
        self.pieces = [nn.Parameter(local(parameter)) for parameter in parameters]
        self.optimizer = make([piece for piece in self.pieces if piece.numel()])

    def step(self, rates: list[float]) -> None:
        """Take a step at the learning rate of each group."""
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for whole, piece in zip(self.wholes, self.pieces, strict=True):
            assert piece.data_ptr() == local(whole).data_ptr(), "a piece of the weights has moved"
            piece.grad = None if whole.grad is None else local(whole.grad)
        self.optimizer.step()

    def zero_grad(self) -> None:
        """Set all gradients to zero."""
        for whole in self.wholes:
            if whole.grad is not None:
                local(whole.grad).zero_()

    def state(self) -> dict[StateKey, Tensor]:
        """Return what is remembered: distributed as its parameter where it has a parameter's shape."""
        found: dict[StateKey, Tensor] = {}
        for number, (whole, piece) in enumerate(zip(self.wholes, self.pieces, strict=True)):
            for name, value in self.optimizer.state.get(piece, {}).items():
                if isinstance(value, Tensor):
                    found[number, name] = self._wrapped(whole, value) if value.shape == piece.shape else value
        return found

    def load(self, state: Mapping[StateKey, Tensor]) -> None:
        """Go on with what `state` returned."""
        self.optimizer.state.clear()
        for (number, name), value in state.items():
            if self.pieces[number].numel():
                own = local(value) if isinstance(value, DTensor) else value
                self.optimizer.state[self.pieces[number]][name] = own

    def moved(self, measure: Callable[[torch.optim.Optimizer], Any]) -> Any:
        """Return what `measure` finds of this rank's pieces."""
        return measure(self.optimizer)

    @staticmethod
    def _wrapped(whole: DTensor, value: Tensor) -> DTensor:
        return DTensor.from_local(
            value, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )


class ShardedOptimizer(torch.optim.Optimizer):
    """The optimiser of a sharded policy, as rank 0 sees it: learning rates are set here, steps are taken on all ranks.

    Args:
        policy: whose parameters.
        make: parameters -> the optimiser of a rank's pieces; it is sent to every rank.
        name: of the optimiser, as `optim.name` has it.

    Raises:
        InputError: one that looks at more than a number's own gradients.
    """

    def __init__(self, policy: ShardedPolicy, make: Make, name: str) -> None:
        if name not in BY_ELEMENT:
            raise InputError(
                f"optim.name = {name} on several ranks",
                "it looks at whole matrices, which lie in pieces on the ranks",
                f"Take one of {', '.join(BY_ELEMENT)}",
            )
        self._policy = policy
        policy.ranks.each(_make, make)
        own: PieceOptimizer = policy.ranks.station.kept[OPTIMIZER]
        super().__init__(policy.parameters(), {k: v for k, v in own.optimizer.param_groups[0].items() if k != "params"})

    @spanned("optimiser")
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step on all ranks."""
        assert closure is None
        self._policy.ranks.each(_step, [group["lr"] for group in self.param_groups])
        self._policy.changed()

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Set all gradients to zero on all ranks."""
        self._policy.ranks.each(_zero)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Distribute the state of an optimiser of one process (its `state_dict`)."""
        found = {(n, name): x for n, own in state_dict["state"].items() for name, x in own.items() if x is not None}
        shapes = {key: tuple(value.shape) for key, value in found.items()}
        ranks = self._policy.ranks
        ranks.call(_load, [(shapes, found), *[(shapes, None)] * (ranks.count - 1)])

    def measured(self, measure: Callable[[torch.optim.Optimizer], Any]) -> list[Any]:
        """Return what `measure` finds of each rank's pieces."""
        return self._policy.ranks.each(_measure, measure)


def _make(station: Station, make: Make) -> None:
    station.kept[OPTIMIZER] = PieceOptimizer(station.kept[work.POLICY].parameters(), make)


def _step(station: Station, rates: list[float]) -> None:
    station.kept[OPTIMIZER].step(rates)


def _zero(station: Station, share: None) -> None:
    station.kept[OPTIMIZER].zero_grad()


def _measure(station: Station, measure: Callable[[torch.optim.Optimizer], Any]) -> Any:
    return station.kept[OPTIMIZER].moved(measure)


def _load(station: Station, share: tuple[dict[StateKey, tuple[int, ...]], dict[StateKey, Tensor] | None]) -> None:
    """Distribute the state that rank 0 has; what has no parameter's shape is the same on all ranks."""
    shapes, state = share
    own: PieceOptimizer = station.kept[OPTIMIZER]
    found: dict[StateKey, Tensor] = {}
    for (number, name), shape in shapes.items():
        whole = own.wholes[number]
        value = torch.empty(shape, dtype=whole.dtype) if state is None else state[number, name]
        if shape == tuple(whole.shape):
            found[number, name] = distributed(value.to(whole.device, whole.dtype), whole)
        else:
            found[number, name] = _same_everywhere(value, station)
    own.load(found)


def _same_everywhere(value: Tensor, station: Station) -> Tensor:
    box = [value]
    torch.distributed.broadcast_object_list(box, src=0, group=station.answers)
    return box[0]
