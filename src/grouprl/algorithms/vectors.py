"""Vectors over all weights of a policy in this process, and the choice of those of a policy in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor

from grouprl.algorithms.objective.importance import flat, gradient, write
from grouprl.core.json_types import State
from grouprl.protocols import Policy, distributed_policy
from grouprl.protocols.vectors import Vector, VectorSpace, in_memory


@contextmanager
def vectors_of(policy: Policy, optimizer: torch.optim.Optimizer, store: State) -> Iterator[VectorSpace[Vector]]:
    """Open the vectors over a policy's weights; those that are kept are in `store`, or in parts on its ranks."""
    spread = distributed_policy(policy)
    if spread is None:
        own = [each for _, each in policy.named_parameters()]
        yield cast("VectorSpace[Vector]", vectors_here(own, optimizer, store))
        return
    with spread.vectors(store) as space:
        yield cast("VectorSpace[Vector]", space)


def vectors_here(own: Sequence[Tensor], optimizer: torch.optim.Optimizer, store: State) -> VectorSpace[Tensor]:
    """Return the vectors over parameters of this process, which are tensors [P]."""
    return VectorsHere(own, optimizer, store)


class VectorsHere:
    """The vectors over parameters of this process: tensors [P]; see `grouprl.protocols.vectors.VectorSpace`.

    Args:
        own: the parameters.
        optimizer: their optimiser, in whose state a checkpoint of several processes has vectors.
        store: memory of a part, which checkpoints hold.
    """

    def __init__(self, own: Sequence[Tensor], optimizer: torch.optim.Optimizer, store: State) -> None:
        self._own, self._optimizer, self._store = list(own), optimizer, store

    @property
    def eps(self) -> float:
        """The distance from 1 to the next number of the weights' type."""
        return float(torch.finfo(flat(self._own[:1]).dtype).eps)

    def weights(self) -> Tensor:
        """Return a copy of the weights as they are."""
        return flat(self._own)

    def gradient(self) -> Tensor:
        """Return a copy of the gradient; 0 for weights without one."""
        return gradient(self._own)

    def zeros(self) -> Tensor:
        """Return a vector of zeros."""
        return torch.zeros_like(flat(self._own))

    def write(self, value: Tensor) -> None:
        """Make the numbers of a vector the weights."""
        write(self._own, value)

    def clear(self) -> None:
        """Remove all gradients."""
        for parameter in self._own:
            parameter.grad = None

    def keep(self, name: str, value: Tensor) -> None:
        """Keep a vector under a name; it is in the run's checkpoints."""
        self._store[name] = value

    def kept(self, name: str) -> Tensor | None:
        """Return the vector of a name, whatever number of processes kept it; None if there is none."""
        states = [self._optimizer.state.get(parameter, {}) for parameter in self._own]
        pieces = [state.pop(in_memory(name)) for state in states if in_memory(name) in state]
        if name not in self._store:
            if len(pieces) < len(self._own):
                return None
            self._store[name] = flat(pieces)
        found_p: Tensor = self._store[name]
        return found_p.to(self._own[0].device)
