"""Measures of the gaps between a reward model's scores in a group: calibration, and preference for length and style."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MARKS = re.compile(r"^\s*(?:#{1,6} |[-*+] |\d+[.)] )|\*\*[^*\n]+\*\*|```|\|.*\|", re.MULTILINE)
"""Headings, items of lists, bold text, code and tables in Markdown."""
SIZES = ("longer", "marked")
"""Sizes by which completions differ: characters, and marks of Markdown."""
OF_DATA = frozenset(f"{size}_better" for size in SIZES)
"""Measures that the pairs have by themselves, whatever the scores are: training cannot change them."""


def gap_measures(reward_n: Floats, gap_nn: Floats, texts: Sequence[str]) -> dict[str, float]:
    """Return means over the pairs of a group, N completions; NaN where no pair has what is asked. `gap_nn` says by how
    much each scores above each other one.

    `pair_loss` is -log σ(gap) for gaps r(better) - r(worse), `pair_confidence` is σ(|gap|), which for a calibrated
    model is the share ranked right. Among pairs that differ in length, `longer_preferred` is the share whose longer
    completion has the higher score and `longer_better` the share where it is the better one; `marked_…` the same of
    Markdown.
    """
    better, worse = np.nonzero(reward_n[:, None] > reward_n[None])
    gap_p = gap_nn[better, worse]
    found = {"pair_loss": mean(np.logaddexp(0.0, -gap_p)), "pair_confidence": mean(1 / (1 + np.exp(-np.abs(gap_p))))}
    for name, size_n in zip(SIZES, (lengths(texts), marks(texts)), strict=True):
        more_p = np.sign(size_n[better] - size_n[worse])
        found[f"{name}_preferred"] = mean((np.sign(gap_p) == more_p)[more_p != 0])
        found[f"{name}_better"] = mean((more_p > 0)[more_p != 0])
    return found


def mean(values: NDArray[np.generic]) -> float:
    """Return the mean; NaN without values."""
    return float(values.mean()) if values.size else math.nan


def lengths(texts: Sequence[str]) -> Floats:
    """Return the number of characters of each text."""
    return np.array([len(text) for text in texts], dtype=np.float64)


def marks(texts: Sequence[str]) -> Floats:
    """Return how many headings, list items and other Markdown marks each text has."""
    return np.array([len(MARKS.findall(text)) for text in texts], dtype=np.float64)
