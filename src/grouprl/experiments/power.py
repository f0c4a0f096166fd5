"""Power before compute: which groups teach, and how many prompts and seeds show a difference, from a pilot's rewards.

Rewards are lists of arrays, one per group: the rewards [n] of its completions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grouprl.core.errors import InputError
from grouprl.evaluation.pass_at_k import Z95, Estimate, interval, t_quantile

Floats = NDArray[np.float64]
Z80 = 0.8416212335729143
"""The 80 % point of the normal distribution: a difference is then missed once in five times."""
MOST_SEEDS = 10_000
MOST_PROMPTS = 1_000_000_000


def teaching(rewards: Sequence[Floats], size: int) -> Estimate:
    """Return the share of groups of `size` completions with unequal rewards, with its interval over prompts.

    For each pilot group of n >= `size` it is the chance that `size` of its completions, drawn without replacement,
    differ: 1 - Σ_v C(c_v, size) / C(n, size) with c_v completions of reward v. It has no bias, whatever rewards are.
    The interval is Wilson's with a trial per group.

    Raises:
        InputError: a group is smaller than `size`.
    """
    return interval(np.array([_unequal(group, size) for group in rewards]), 1)


def _unequal(reward_n: Floats, size: int) -> float:
    if len(reward_n) < size:
        raise InputError(f"groups of {size} from a group of {len(reward_n)}", "smaller groups are drawn from it")
    counts = np.unique(reward_n, return_counts=True)[1]
    return 1.0 - sum(math.comb(int(count), size) for count in counts) / math.comb(len(reward_n), size)


def extrapolated(rewards: Sequence[Floats], size: int) -> float | None:
    """Return the share of groups of any `size` that have unequal rewards, if rewards are 0 or 1; else None.

    The share of groups without a difference is that of the smallest pilot group's size n, times how much it falls from
    n to `size` where the chances of success of prompts follow a beta distribution with the pilot's first two moments,
    each without bias: E[p] = c/n and E[p²] = c(c-1)/(n(n-1)). Where they do not vary, all prompts have the same.

    Raises:
        InputError: a group has a single completion.
    """
    if any(not np.isin(group, (0.0, 1.0)).all() for group in rewards):
        return None
    n, c = np.array([len(group) for group in rewards], float), np.array([group.sum() for group in rewards])
    if (n < 2).any():
        raise InputError("a group of one", "a spread needs groups of at least two", "Take another pilot")
    first, second = float((c / n).mean()), float((c * (c - 1) / (n * (n - 1))).mean())
    least = int(n.min())
    there, here = (_all(first, second, g) + _all(1 - first, 1 - 2 * first + second, g) for g in (size, least))
    return 1.0 - (1.0 - teaching(rewards, least).value) * (there / here if here > 0 else 1.0)


def _all(first: float, second: float, size: int) -> float:
    """Return E[p^size] of a beta distribution with E[p] = `first` and E[p²] = `second`."""
    variance = second - first**2
    # The beta distribution's parameters would be infinite here, and 0 in the case below.
    if variance <= 1e-12:
        return first**size
    if variance >= first * (1 - first) - 1e-12:
        return first  # each prompt is always or never solved
    total = first * (1 - first) / variance - 1
    return math.prod((first * total + i) / (total + i) for i in range(size))


@dataclass(frozen=True)
class Spread:
    """Mean and variances of rewards: between prompts and between the completions of a prompt."""

    mean: float
    between: float
    within: float

    @classmethod
    def of(cls, rewards: Sequence[Floats]) -> Spread:
        """Return the spread in groups of at least two (analysis of variance; groups may differ in size).

        Raises:
            InputError: there are fewer than two groups, one has a single completion, or rewards are too large.
        """
        return cls.pooled([rewards])

    @classmethod
    def pooled(cls, pilots: Sequence[Sequence[Floats]]) -> Spread:
        """Return the spread within several pilots: their variances' mean, weighted by degrees of freedom.

        The mean rewards of pilots may differ, as runs do; that is not a spread of prompts.

        Raises:
            InputError: as `of`, for any of them.
        """
        parts, weight_p = list(map(_parts, pilots)), np.array([len(rewards) - 1.0 for rewards in pilots])
        mean, between, within = np.average(np.array(parts), axis=0, weights=weight_p)
        return cls(float(mean), max(0.0, float(between)), float(within))

    def half_width(self, prompts: int, completions: int) -> float:
        """Return half the width of the 95 % interval of a mean over held-out prompts, `completions` of each."""
        return Z95 * math.sqrt((self.between + self.within / completions) / prompts)

    def of_difference(self, completions: int, *, shared: bool) -> float:
        """Return the variance per prompt of the difference of two policies evaluated on the same prompts.

        `shared`: both find the same prompts hard, to the same degree, so that only completions differ: the least that
        is possible. Otherwise the difficulties of prompts have nothing in common.
        """
        return 2 * (self.within / completions + (0.0 if shared else self.between))


def _parts(rewards: Sequence[Floats]) -> tuple[float, float, float]:
    """Return the mean of a pilot's rewards, the variance between groups, without bias, and that within."""
    if len(rewards) < 2 or any(len(group) < 2 for group in rewards):
        raise InputError("a pilot of one group, or with a group of one", "a spread needs at least two groups of two")
    with np.errstate(over="ignore", invalid="ignore"):
        means, n = np.array([group.mean() for group in rewards]), np.array([len(group) for group in rewards], float)
        within_q = np.array([group.var(ddof=1) for group in rewards])
        found = float(means.mean()), float(means.var(ddof=1) - (within_q / n).mean()), float(within_q.mean())
    if not np.isfinite(found).all():
        largest = max(float(np.abs(group).max()) for group in rewards)
        raise InputError(
            f"rewards of the pilot up to {largest:g}", "their squares must be finite numbers", "Scale the reward down"
        )
    return found


def prompts_needed(variance: float, difference: float) -> int | None:
    """Return the prompts that show a difference in 80 % of cases, at 5 % two-sided.

    The smallest number of at least (z.975 + z.8)²·variance/difference²; None if it is above `MOST_PROMPTS`.

    Raises:
        InputError: the difference is not above 0.
    """
    root = (Z95 + Z80) * math.sqrt(variance) / _positive(difference)
    return None if root > math.sqrt(MOST_PROMPTS) else max(2, math.ceil(root**2))


def smallest_difference(variance: float, prompts: int) -> float:
    """Return the difference that so many prompts show in 80 % of cases, at 5 % two-sided."""
    return (Z95 + Z80) * math.sqrt(variance / prompts)


def seeds_needed(deviation: float, difference: float) -> int | None:
    """Return the paired seeds of each method that show a difference in 80 % of cases, at 5 % two-sided.

    `deviation` is that of one method's final measure over seeds; two methods are taken to have the same, and seeds to
    share nothing, so that their difference has √2 of it (pairing can only need fewer). The smallest n with
    n >= (t.975(n-1) + z.8)²·2·deviation²/difference². None if it is above 10,000.

    Raises:
        InputError: the difference is not above 0.
    """
    root = deviation / _positive(difference)
    if root > MOST_SEEDS:
        return None
    ratio = 2 * root**2
    return next((n for n in range(2, MOST_SEEDS) if n >= (t_quantile(n - 1) + Z80) ** 2 * ratio), None)


def _positive(difference: float) -> float:
    if difference <= 0:
        raise InputError(f"a difference of {difference:g}", "it must be above 0")
    return difference
