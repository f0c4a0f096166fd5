"""Aggregates of a few runs with intervals: interquartile mean, stratified bootstrap, probability of improvement,
performance profiles (Agarwal et al. 2021, arXiv:2108.13264).

Scores are arrays `score_nm` [N, M]: one row per seed, one column per task. Runs are drawn anew within each task only,
because tasks are what a comparison was asked about, and seeds are what it happened to draw.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from grouprl.core.errors import InputError

Floats: TypeAlias = NDArray[np.float64]
DRAWS = 5000
"""Bootstrap draws: the ends of a 95 % interval then vary by about a hundredth of its width."""


class Interval(NamedTuple):
    """A value and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def interquartile_mean(score_nm: Floats) -> float:
    """Return the mean of the middle half of all N·M scores.

    A quarter of them, rounded down, is left out at either end (arXiv:2108.13264, section 4.3).
    """
    return float(_middle_mean(np.sort(score_nm, axis=None)))


def _middle_mean(sorted_xn: Floats) -> Floats:
    """Return the mean of the middle half of the last axis, which is sorted."""
    cut = sorted_xn.shape[-1] // 4
    kept: Floats = sorted_xn[..., cut : sorted_xn.shape[-1] - cut].mean(-1)
    return kept


def resampled(score_nm: Floats, rows_dnm: NDArray[np.int64]) -> Floats:
    """Return [D, N, M] the scores of D draws of rows within each task."""
    return np.take_along_axis(score_nm[None], rows_dnm, axis=1)


def draws_of(shape: tuple[int, int], seed: int, draws: int = DRAWS) -> NDArray[np.int64]:
    """Return [D, N, M] rows drawn with replacement, in each task apart from the others."""
    return np.random.default_rng(seed).integers(0, shape[0], (draws, *shape))


def percentiles(value: float, value_d: Floats) -> Interval:
    """Return `value` with the middle 95 % of its bootstrap draws."""
    low, high = np.percentile(value_d, (2.5, 97.5))
    return Interval(value, float(low), float(high))


def iqm_interval(score_nm: Floats, seed: int = 0, draws: int = DRAWS) -> Interval:
    """Return the interquartile mean with its stratified bootstrap interval (percentiles)."""
    drawn_dnm = resampled(_checked(score_nm), draws_of(_shape(score_nm), seed, draws))
    middle_d = _middle_mean(np.sort(drawn_dnm.reshape(draws, -1), axis=1))
    return percentiles(interquartile_mean(score_nm), middle_d)


def iqm_difference(a_nm: Floats, b_nm: Floats, seed: int = 0, draws: int = DRAWS) -> Interval:
    """Return the interquartile mean of `b` less that of `a`; a draw takes the same seeds of both, which are paired."""
    _paired(a_nm, b_nm)
    rows_dnm = draws_of(_shape(a_nm), seed, draws)
    a_d, b_d = (_middle_mean(np.sort(resampled(x, rows_dnm).reshape(draws, -1), axis=1)) for x in (a_nm, b_nm))
    return percentiles(interquartile_mean(b_nm) - interquartile_mean(a_nm), b_d - a_d)


def probability_of_improvement(a_nm: Floats, b_nm: Floats) -> float:
    """Return how likely a run of `b` scores above one of `a`, ties counting half, averaged over tasks.

    The Mann-Whitney statistic over N_a·N_b, of each task (arXiv:2108.13264, section 4.3).
    """
    return float(_above(a_nm, b_nm).mean((0, 1)).mean())


def _above(a_nm: Floats, b_nm: Floats) -> Floats:
    """Return [N_a, N_b, M] whether `b` is above `a`, for each pair of rows: 1, or 0.5 where they tie."""
    a, b = a_nm[:, None, :], b_nm[None, :, :]
    above: Floats = (b > a) + 0.5 * (b == a)
    return above


def _times(rows_dnm: NDArray[np.int64]) -> Floats:
    """Return [D, N, M] how often each row is in a draw."""
    draws, count, tasks = rows_dnm.shape
    place_dnm = (np.arange(draws)[:, None, None] * count + rows_dnm) * tasks + np.arange(tasks)
    return np.bincount(place_dnm.ravel(), minlength=rows_dnm.size).reshape(rows_dnm.shape).astype(np.float64)


def _drawn_above(above_abm: Floats, times_dam: Floats, times_dbm: Floats) -> Floats:
    """Return [D, M] the share of drawn pairs in which `b` is above `a`, without holding the pairs of every draw."""
    pairs = above_abm.shape[0] * above_abm.shape[1]
    tasks = range(above_abm.shape[2])
    sums = [((times_dam[:, :, m] @ above_abm[:, :, m]) * times_dbm[:, :, m]).sum(1) for m in tasks]
    return np.stack(sums, axis=1) / pairs


def improvement_interval(a_nm: Floats, b_nm: Floats, seed: int = 0, draws: int = DRAWS) -> Interval:
    """Return the probability of improvement with its stratified bootstrap interval; seeds of both are drawn apart."""
    value = probability_of_improvement(_checked(a_nm), _checked(b_nm))
    times_dam, times_dbm = _times(draws_of(_shape(a_nm), seed, draws)), _times(draws_of(_shape(b_nm), seed + 1, draws))
    return percentiles(value, _drawn_above(_above(a_nm, b_nm), times_dam, times_dbm).mean(-1))


def performance_profile(score_nm: Floats, level_l: Floats) -> Floats:
    """Return [L] the share of the N·M runs that score above each level (arXiv:2108.13264, section 4.2)."""
    return np.array([float((score_nm > level).mean()) for level in level_l])


def profile_band(score_nm: Floats, level_l: Floats, seed: int = 0, draws: int = DRAWS) -> tuple[Floats, Floats]:
    """Return [L] the lower and upper end of the profile's stratified bootstrap band."""
    drawn_dnm = resampled(_checked(score_nm), draws_of(_shape(score_nm), seed, draws))
    share_ld = np.stack([(drawn_dnm > level).mean((1, 2)) for level in level_l])
    low_l, high_l = np.percentile(share_ld, (2.5, 97.5), axis=1)
    return low_l, high_l


def curve_band(curve_np: Floats, seed: int = 0, draws: int = DRAWS // 5) -> tuple[Floats, Floats, Floats]:
    """Return [P] the interquartile mean of N curves at each of P points, and the ends of its bootstrap band.

    A draw takes whole curves.
    """
    rows_dn = np.random.default_rng(seed).integers(0, len(curve_np), (draws, len(curve_np)))

    def middle(x_dnp: Floats) -> Floats:
        return _middle_mean(np.sort(np.moveaxis(x_dnp, -2, -1), axis=-1))

    low_p, high_p = np.percentile(middle(curve_np[rows_dn]), (2.5, 97.5), axis=0)
    return middle(curve_np), low_p, high_p


def _shape(score_nm: Floats) -> tuple[int, int]:
    rows, columns = score_nm.shape
    return rows, columns


def _paired(a_nm: Floats, b_nm: Floats) -> None:
    if _checked(a_nm).shape != _checked(b_nm).shape:
        raise InputError(f"scores of {a_nm.shape} and {b_nm.shape}", "paired runs have the same seeds and tasks")


def _checked(score_nm: Floats) -> Floats:
    if score_nm.ndim != 2 or not score_nm.size or not np.isfinite(score_nm).all():
        raise InputError(f"scores of shape {score_nm.shape}", "they are finite numbers [seeds, tasks], at least one")
    return score_nm
