"""Two laws of training: reward as a function of entropy, and pass rate as a function of compute.

The entropy law, R = -a·e^H + b, is linear in x = e^H (The Entropy Mechanism of RL, arXiv:2505.22617). The sigmoid law,
R(C) = R_0 + (A - R_0)/(1 + (C_mid/C)^B), is that of ScaleRL (arXiv:2510.13786). Both are fitted to numbers that a run
has logged; numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grouprl.core.errors import InputError

Numbers = NDArray[np.float64]
LEAST_SPAN = 0.05
"""Range of e^H, as a share of its mean, below which a line through it says little."""


@dataclass(frozen=True)
class EntropyLaw:
    """R = -a·e^H + b with its R², and sentences on why it may not hold."""

    a: float
    b: float
    r2: float
    warnings: tuple[str, ...] = ()

    @property
    def ceiling(self) -> float:
        """The reward at entropy 0, b - a, when all entropy is spent."""
        return self.b - self.a

    def predict(self, entropy: float) -> float:
        """Return the reward at mean token entropy `entropy` in nats."""
        return self.b - self.a * math.exp(entropy)


def fit_entropy_law(entropy_n: Sequence[float], reward_n: Sequence[float]) -> EntropyLaw:
    """Fit R = -a·e^H + b by least squares of R on e^H.

    It holds for runs without an entropy bonus or a KL term; a and b depend on model and data, not on the method.

    Args:
        entropy_n: [N] mean token entropy in nats, of the policy on its own completions.
        reward_n: [N] reward (held-out accuracy) at the same steps.

    Raises:
        InputError: fewer than three points, numbers that are not finite, or entropies that are all the same.
    """
    h_n, r_n = _points(entropy_n, reward_n, 3, "entropy_n", "reward_n")
    x_n = np.exp(h_n)
    spread = float(((x_n - x_n.mean()) ** 2).sum())
    if float(np.ptp(h_n)) == 0:
        raise InputError("all entropies are the same", "a line needs at least two that differ", "Give more steps")
    slope = float(((x_n - x_n.mean()) * (r_n - r_n.mean())).sum()) / spread
    a, b = -slope, float(r_n.mean() - slope * x_n.mean())
    words = []
    if float(np.ptp(x_n)) < LEAST_SPAN * float(x_n.mean()):
        words.append(f"e^H spans {np.ptp(x_n):.3g} around {x_n.mean():.3g}: too little to fit a line to")
    if slope > 0:
        words.append("reward rises with entropy here: the law is that of runs which trade entropy for reward")
    return EntropyLaw(a, b, _r2(r_n, b - a * x_n), tuple(words))


@dataclass(frozen=True)
class SigmoidLaw:
    """R(C) = R_0 + (A - R_0)/(1 + (C_mid/C)^B) with its R²."""

    start: float
    """R_0, the pass rate before training."""
    ceiling: float
    """A, the pass rate that no compute exceeds."""
    exponent: float
    """B > 0, the exponent that sets how fast the pass rate approaches the ceiling."""
    midpoint: float
    """C_mid, the compute at half of the gain, in the units of the fit."""
    r2: float

    def predict(self, compute: float) -> float:
        """Return the pass rate after `compute` > 0 in the units of the fit."""
        if compute <= 0:
            raise InputError(f"compute = {compute:g}", "it must be above 0")
        return float(_sigmoid(np.array([compute]), self.start, self.ceiling, self.exponent, self.midpoint)[0])


def fit_sigmoid_law(
    compute_n: Sequence[float],
    reward_n: Sequence[float],
    *,
    start: float,
    skip: float = 0.0,
    ceilings: Sequence[float] | None = None,
    precision: float = 1e-6,
) -> SigmoidLaw:
    """Fit ScaleRL's sigmoid: try a grid of ceilings, fit B and C_mid for each by a line, and refine the best fit.

    With A and R_0 given, log((A - R_0)/(R - R_0) - 1) = B·log C_mid - B·log C is a line in log C.
    *Differs from the paper*, which takes a grid over C_mid too; here the line gives C_mid and B.

    Args:
        compute_n: [N] compute spent so far, in any unit above 0.
        reward_n: [N] held-out pass rate.
        start: R_0, the measured pass rate before training.
        skip: leave out points below this compute (the early transient).
        ceilings: values of A to try; None: 200 from just above the best pass rate to three times the gain.
        precision: relative step at which the refinement ends.

    Raises:
        InputError: fewer than four points, compute not above 0, or no point above `start`.
    """
    c_n, r_n = _points(compute_n, reward_n, 4, "compute_n", "reward_n")
    if bool((c_n <= 0).any()):
        raise InputError(f"compute_n holds {c_n.min():g}", "compute must be above 0")
    keep_n = c_n >= skip
    c_n, r_n = c_n[keep_n], r_n[keep_n]
    if len(c_n) < 4:
        what = f"{len(c_n)} point{'s' * (len(c_n) != 1)} from compute {skip:g} on"
        raise InputError(what, "a sigmoid needs at least four", "Lower skip")
    gain = float(r_n.max()) - start
    if gain <= 0:
        raise InputError(
            f"no pass rate exceeds start = {start:g}", "the law describes growth from there", "Lower start"
        )
    grid = np.linspace(1.001, 3.0, 200) * gain + start if ceilings is None else np.asarray(ceilings, float)
    best = min((_given_ceiling(float(a), c_n, r_n, start) for a in grid if a > start), key=lambda found: found[0])
    _, ceiling, exponent, midpoint = _refined(best, c_n, r_n, start, precision)
    fitted_n = _sigmoid(c_n, start, ceiling, exponent, midpoint)
    return SigmoidLaw(start, ceiling, exponent, midpoint, _r2(r_n, fitted_n))


Found = tuple[float, float, float, float]
"""Sum of squared errors, A, B, C_mid."""


def _given_ceiling(ceiling: float, c_n: Numbers, r_n: Numbers, start: float) -> Found:
    """Fit B and C_mid by a line through the points strictly between start and ceiling."""
    inside_n = (r_n > start) & (r_n < ceiling)
    if int(inside_n.sum()) < 2 or float(np.ptp(c_n[inside_n])) == 0:
        return math.inf, ceiling, 1.0, float(np.median(c_n))
    x_n = np.log(c_n[inside_n])
    y_n = np.log((ceiling - start) / (r_n[inside_n] - start) - 1)
    slope = float(((x_n - x_n.mean()) * (y_n - y_n.mean())).sum() / ((x_n - x_n.mean()) ** 2).sum())
    exponent = max(-slope, 1e-3)
    midpoint = math.exp(min(max(float(y_n.mean()) / exponent + float(x_n.mean()), -700.0), 700.0))
    return _error(ceiling, exponent, midpoint, c_n, r_n, start), ceiling, exponent, midpoint


def _refined(best: Found, c_n: Numbers, r_n: Numbers, start: float, precision: float) -> Found:
    """Minimise the error over (A - R_0, B, C_mid) by coordinate descent, with shrinking factors."""
    step = 0.1
    while step > precision:
        _, a, b, mid = best
        factors = (1 + step, 1 / (1 + step))
        tries = [(start + (a - start) * f, b, mid) for f in factors]
        tries += [(a, b * f, mid) for f in factors] + [(a, b, mid * f) for f in factors]
        found = min(((_error(*t, c_n, r_n, start), *t) for t in tries), key=lambda one: one[0])
        best, step = (found, step) if found[0] < best[0] else (best, step / 2)
    return best


def _error(ceiling: float, exponent: float, midpoint: float, c_n: Numbers, r_n: Numbers, start: float) -> float:
    return float(((_sigmoid(c_n, start, ceiling, exponent, midpoint) - r_n) ** 2).sum())


def _sigmoid(c_n: Numbers, start: float, ceiling: float, exponent: float, midpoint: float) -> Numbers:
    power_n = np.clip(exponent * (math.log(midpoint) - np.log(c_n)), -700.0, 700.0)
    return np.asarray(start + (ceiling - start) / (1 + np.exp(power_n)), dtype=np.float64)


def _points(x: Sequence[float], y: Sequence[float], least: int, x_name: str, y_name: str) -> tuple[Numbers, Numbers]:
    """Return x and y as arrays; raises InputError if they cannot be points of a curve."""
    x_n, y_n = np.asarray(x, float), np.asarray(y, float)
    if x_n.ndim != 1 or x_n.shape != y_n.shape:
        raise InputError(f"{x_name} has shape {list(x_n.shape)}, {y_name} {list(y_n.shape)}", "both must be [N]")
    if len(x_n) < least:
        raise InputError(f"{len(x_n)} points", f"a fit needs at least {least}", "Give more steps")
    if not bool(np.isfinite(x_n).all() and np.isfinite(y_n).all()):
        raise InputError(f"{x_name} or {y_name} holds numbers that are not finite", remedy="Leave those steps out")
    return x_n, y_n


def _r2(seen_n: Numbers, fitted_n: Numbers) -> float:
    """Return the share of the variance that the fit explains; 1 for an exact fit of constant values."""
    total, left = float(((seen_n - seen_n.mean()) ** 2).sum()), float(((seen_n - fitted_n) ** 2).sum())
    return 1 - left / total if total > 0 else float(left == 0)
