"""Gates: a value that penalties can only lower."""

from __future__ import annotations

from collections.abc import Iterable

from grouprl.core.errors import InputError


def product(value: float, gates: Iterable[float]) -> float:
    """Return a value times every gate, as CaRL pays progress (Jaeger et al. 2025, arXiv 2504.17838).

    A gate is in [0, 1]; 0 takes everything.

    Raises:
        InputError: on a gate outside [0, 1].
    """
    for gate in gates:
        if not 0 <= gate <= 1:
            raise InputError(f"A gate is {gate}", "gates are within 0..1, so that they only ever take away")
        value *= gate
    return value
