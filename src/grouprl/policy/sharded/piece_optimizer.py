"""A rank's optimiser over its own pieces of the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from grouprl.policy.sharded.pieces import copies, local
from grouprl.policy.sharded.ranks import Station

OPTIMIZER = "optimizer"
"""The name under which a rank keeps its optimiser."""
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
StateKey = tuple[int, str]
"""Key of an entry of the optimiser's state: number of the parameter, and name of the entry."""
Found = TypeVar("Found")


class PieceOptimizer:
    """A rank's optimiser over its own pieces of the weights, which it shares memory with."""

    def __init__(self, parameters: list[nn.Parameter], make: Make, station: Station) -> None:
        self.wholes = [parameter for parameter in parameters if isinstance(parameter, DTensor)]
        assert len(self.wholes) == len(parameters)
        self.pieces = [nn.Parameter(local(parameter)) for parameter in parameters]
        self.optimizer = make([piece for piece in self.pieces if piece.numel()])
        first = station.mesh is None or station.mesh.ndim == 1 or station.mesh.get_local_rank("tensor") == 0
        self._counted = {
            piece
            for whole, piece in zip(self.wholes, self.pieces, strict=True)
            if first or copies(whole, station.count) == 1
        }

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
        """Return the state of the optimiser; an entry with its parameter's shape is distributed as the parameter is."""
        found: dict[StateKey, Tensor] = {}
        for number, (whole, piece) in enumerate(zip(self.wholes, self.pieces, strict=True)):
            for name, value in sorted(self.optimizer.state.get(piece, {}).items()):  # in whatever order it was loaded
                if isinstance(value, Tensor):
                    found[number, name] = self._wrapped(whole, value) if value.shape == piece.shape else value
        return found

    def load(self, state: Mapping[StateKey, Tensor]) -> None:
        """Take over a state like that of `state`: its tensors become the optimiser's own."""
        self.optimizer.state.clear()
        for (number, name), value in state.items():
            if self.pieces[number].numel():
                self.optimizer.state[self.pieces[number]][name] = local(value) if isinstance(value, DTensor) else value

    def measured(self, measure: Callable[[object], Found]) -> Found:
        """Return the result of `measure` for this rank's pieces, in the order of the parameters; an empty piece stands
        for one that another rank counts.
        """
        assert len(self.optimizer.param_groups) == 1
        counted = [piece if piece in self._counted else piece[:0] for piece in self.pieces]
        return measure(
            SimpleNamespace(
                param_groups=[self.optimizer.param_groups[0] | {"params": counted}], state=self.optimizer.state
            )
        )

    @staticmethod
    def _wrapped(whole: DTensor, value: Tensor) -> DTensor:
        return DTensor.from_local(
            value, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )
