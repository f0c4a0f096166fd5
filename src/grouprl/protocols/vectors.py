"""Vectors over all weights of a policy, wherever these are: arithmetic that a step of an update is written in."""

from __future__ import annotations

from typing import Protocol, Self, SupportsFloat, TypeVar


def in_memory(name: str) -> str:
    """Return the name under which an optimiser's state holds the pieces of a vector that is kept."""
    return f"vector {name}"


class Vector(Protocol):
    """A number for each weight of a policy; a torch tensor [P] is one where one process has all weights."""

    def __add__(self, other: Self, /) -> Self:
        """Return the sum."""
        ...

    def __sub__(self, other: Self, /) -> Self:
        """Return the difference."""
        ...

    def __rmul__(self, factor: float, /) -> Self:
        """Return the product with a number."""
        ...

    def __truediv__(self, divisor: float, /) -> Self:
        """Return the quotient by a number."""
        ...

    def norm(self) -> SupportsFloat:
        """Return the Euclidean length."""
        ...

    def any(self) -> object:
        """Return something true if a number is not 0."""
        ...


V = TypeVar("V", bound=Vector)
"""The vectors of one space."""


class VectorSpace(Protocol[V]):
    """The vectors over the trainable weights of one policy."""

    @property
    def eps(self) -> float:
        """The distance from 1 to the next number of the weights' type."""

    def weights(self) -> V:
        """Return a copy of the weights as they are."""
        ...

    def gradient(self) -> V:
        """Return a copy of the gradient; 0 for weights without one."""
        ...

    def zeros(self) -> V:
        """Return a vector of zeros."""
        ...

    def write(self, value: V, /) -> None:
        """Make the numbers of a vector the weights."""
        ...

    def clear(self) -> None:
        """Remove all gradients."""
        ...

    def keep(self, name: str, value: V, /) -> None:
        """Keep a vector under a name; it is in the run's checkpoints."""
        ...

    def kept(self, name: str, /) -> V | None:
        """Return the vector of a name, whatever number of processes kept it; None if there is none."""
        ...
