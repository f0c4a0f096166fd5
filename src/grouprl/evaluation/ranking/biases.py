"""Measures of the gaps between the scores of pairs: calibration, and biases of length and style."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grouprl.evaluation.pass_at_k import Estimate, interval, mean_interval
from grouprl.rollout.pair_gaps import lengths, marks

Floats = NDArray[np.float64]
BINS = 10


def calibration_error(gap_p: Floats, bins: int = BINS) -> float:
    """Return the expected calibration error of pairs with score gaps r(better) - r(worse), [P].

    The model's confidence in a pair is σ(|gap|), from 0.5 to 1, cut into `bins` equal bins; the error is the mean, by
    pairs, of |share right - mean confidence| of the bins (Naeini et al. 2015).
    """
    confidence_p = 1 / (1 + np.exp(-np.abs(gap_p)))
    right_p = (gap_p > 0).astype(np.float64)
    bin_p = np.minimum(((confidence_p - 0.5) * 2 * bins).astype(np.int64), bins - 1)
    found = [abs(right_p[bin_p == b].sum() - confidence_p[bin_p == b].sum()) for b in range(bins)]
    return float(sum(found) / len(gap_p))


def negative_log_likelihood(gap_p: Floats) -> Estimate:
    """Return the mean of -log σ(gap), with an interval: ln 2 for a model that knows nothing."""
    return mean_interval(np.logaddexp(0.0, -gap_p), least=0.0)


def preference_for(more_p: NDArray[np.bool_], less_p: NDArray[np.bool_], gap_p: Floats) -> dict[str, Estimate]:
    """Return how often the scores, and how often the labels, prefer the completion that has more of something.

    `more_p` marks the pairs whose better completion has more, `less_p` those whose worse one has. Both shares are over
    the pairs that differ; {} without any. A model without a bias prefers it as often as the labels do.
    """
    differ_p = more_p | less_p
    if not differ_p.any():
        return {}
    scored_p = np.where(more_p, gap_p > 0, gap_p < 0)[differ_p].astype(np.float64)
    return {"scores": interval(scored_p, 1), "labels": interval(more_p[differ_p].astype(np.float64), 1)}


def biases(better: Sequence[str], worse: Sequence[str], gap_p: Floats) -> dict[str, dict[str, Estimate]]:
    """Return the preferences for longer texts (characters), and for texts with more marks of Markdown."""
    sizes = {"longer": (lengths(better), lengths(worse)), "more marks": (marks(better), marks(worse))}
    found = {name: preference_for(b > w, b < w, gap_p) for name, (b, w) in sizes.items()}
    return {name: each for name, each in found.items() if each}
