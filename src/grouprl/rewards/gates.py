"""Gates: a value that penalties can only lower."""

from __future__ import annotations

from collections.abc import Iterable

from grouprl.core.errors import InputError


def product(value: float, gates: Iterable[float]) -> float:
    """Return a value times every gate, as CaRL rewards progress (Jaeger et al. 2025, arXiv 2504.17838).

    A gate is in [0, 1]; a gate of 0 makes the product 0.

    Raises:
        InputError: on a gate outside [0, 1].
    """
    for gate in gates:
        if not 0 <= gate <= 1:
            raise InputError(f"A gate is {gate}", "a gate only lowers a value, so it must be within 0..1", "Clip it")
        value *= gate
    return value
