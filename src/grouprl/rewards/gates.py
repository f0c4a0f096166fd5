"""Putting parts of a reward together: gates, products, a veto, saturation, a cosine from one part to another.

All take and return plain numbers, so a reward is written as a sentence of them. Weighted sums need nothing of this: a
reward that returns a dict is summed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from grouprl.errors import InputError


def gated(steps: Iterable[float]) -> float:
    """Return the sum of the steps up to the first that is 0: what comes later is paid only after what comes before."""
    total = 0.0
    for step in steps:
        if step == 0:
            break
        total += step
    return total


def product(value: float, gates: Iterable[float]) -> float:
    """Return a value times every gate; a gate is in [0, 1], and 0 takes everything.

    Raises:
        InputError: on a gate outside [0, 1].
    """
    for gate in gates:
        if not 0 <= gate <= 1:
            raise InputError(f"A gate is {gate}", "gates are within 0..1, so that they only ever take away")
        value *= gate
    return value


def veto(scores: Mapping[str, float], weights: Mapping[str, float], critical: Collection[str] = ()) -> float:
    """Return the weighted mean of the scores; 0 if a critical one is 0 (rubric anchors, Huang et al. 2025).

    Raises:
        InputError: if a score has no weight, or a critical one does not exist.
    """
    if unknown := {*scores, *critical} ^ {*weights} | {*critical} - {*scores}:
        raise InputError(
            f"The rubric's scores and weights differ in {', '.join(sorted(unknown))}", "both name the same"
        )
    if any(scores[name] == 0 for name in critical):
        return 0.0
    return sum(weights[name] * score for name, score in scores.items()) / sum(weights.values())


def saturated(score: float, level: float = 0.5, slope: float = 0.25) -> float:
    """Return a score in [0, 1] whose growth above `level` is `slope` times as steep, rescaled so that 1 stays 1."""
    top = level + slope * (1 - level)
    return (score if score <= level else level + slope * (score - level)) / top


def cosine_share(progress: float) -> float:
    """Return (1 + cos(π progress)) / 2 of the progress in [0, 1]: 1 at the beginning, 0 at the end (Datarus-R1)."""
    return (1 + math.cos(math.pi * min(max(progress, 0.0), 1.0))) / 2


def annealed(first: float, then: float, progress: float) -> float:
    """Return a mixture that is all `first` at the beginning and all `then` at the end, moving as a cosine."""
    share = cosine_share(progress)
    return share * first + (1 - share) * then


def progress_times_gates(before: float, after: float, gates: Sequence[float]) -> float:
    """Return the progress made, times every gate: CaRL's reward of a step (Jaeger et al. 2025, arXiv 2504.17838)."""
    return product(after - before, gates)
