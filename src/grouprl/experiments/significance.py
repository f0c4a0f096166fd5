"""Tests of paired differences against chance, corrected for the number of differences looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from grouprl.core.errors import InputError
from grouprl.experiments.aggregates import Floats

NODES, WEIGHTS = np.polynomial.legendre.leggauss(200)


def paired_p_value(difference_nm: Floats) -> float:
    """Return the two-sided p-value of Student's paired t-test that the mean difference [N seeds, M tasks] is zero.

    Tasks are strata: the squared standard error is the mean over tasks of their own, divided by M, and the degrees of
    freedom are Welch's and Satterthwaite's. With one task it is the plain paired test. It is this test, and not one by
    flipping signs, because five seeds have only 32 signs: no p-value could be below 0.06. Differences without spread
    over seeds tell nothing of how far others may differ, and t would be infinite: then only their signs count, which
    N seeds share by chance with probability 2^(1-N). Differences of zero have p = 1.

    Raises:
        InputError: there are fewer than two seeds.
    """
    seeds, tasks = difference_nm.shape
    if seeds < 2:
        raise InputError(f"{seeds} seed", "a test needs the spread of at least two", "Ask for more seeds")
    part_m = difference_nm.var(0, ddof=1) / seeds / tasks**2
    error, mean = math.sqrt(part_m.sum()), float(difference_nm.mean())
    if without_spread(difference_nm):
        # Rounding leaves a spread and a mean of some 1e-17 where exact arithmetic leaves none.
        return 1.0 if abs(mean) <= 1e-12 else 2.0 ** (1 - seeds)
    freedom = part_m.sum() ** 2 / (part_m**2 / (seeds - 1)).sum()
    return two_sided_t(mean / error, float(freedom))


def without_spread(difference_nm: Floats) -> bool:
    """Return whether the differences [N seeds, M tasks] of each task are the same on all seeds."""
    error = math.sqrt(difference_nm.var(0, ddof=1).sum() / len(difference_nm)) / difference_nm.shape[1]
    return error <= 1e-12 * max(1.0, abs(float(difference_nm.mean())))


def two_sided_t(t: float, freedom: float) -> float:
    """Return P(|T| > |t|) of Student's T with `freedom` > 0 degrees of freedom.

    With t = sqrt(freedom)·tan(x) its density is cos(x)^(freedom - 1) up to a factor: integrated by 200 Gauss-Legendre
    nodes on each side of the angle.
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    outside = _cosine_power(angle, math.pi / 2, freedom - 1)
    return float(outside / (outside + _cosine_power(0.0, angle, freedom - 1)))


def _cosine_power(low: float, high: float, power: float) -> float:
    half = (high - low) / 2
    return float(half * (WEIGHTS * np.cos(low + half * (NODES + 1)) ** power).sum())


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's step-down (Scandinavian Journal of Statistics 6, 1979), in their order.

    Calling "different" what is below 0.05 then errs about any of them in at most 5 % of comparisons.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        # A larger p-value must not get a smaller adjusted one, although its factor is smaller.
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted
