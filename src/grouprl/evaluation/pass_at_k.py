"""Estimates from completions that are right or wrong: unbiased pass@k, Wilson intervals."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grouprl.core.errors import InputError

Z95 = 1.959963984540054
"""The 97.5 % point of the normal distribution, for intervals that cover 95 %."""
INTERVAL = (
    "95 %: of shares Wilson's, with the effective number of prompts where several completions share one; of rewards "
    "Student's t over prompts, up to the lowest and highest reward seen"
)


class Estimate(NamedTuple):
    """A mean over prompts and the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the chance that k of n completions, sampled without replacement, include one of the c correct ones.

    1 - C(n-c, k) / C(n, k), the unbiased estimator of Chen et al. 2021 (arXiv:2107.03374, section 2.1).

    Raises:
        InputError: k is outside 1..n or c outside 0..n.
    """
    return float(pass_at_k_each([n], [c], k)[0])


def pass_at_k_each(n_q: ArrayLike, c_q: ArrayLike, k: int) -> NDArray[np.float64]:
    """Return `pass_at_k` of every prompt, [Q]: n_q completions, c_q of them correct, both [Q]."""
    completions_q, correct_q = np.asarray(n_q, dtype=np.int64), np.asarray(c_q, dtype=np.int64)
    if k < 1 or bool((completions_q < k).any()):
        raise InputError(
            f"pass@{k} of {completions_q.min()} completions", "k lies in 1..n", "Sample at least k completions"
        )
    if bool(((correct_q < 0) | (correct_q > completions_q)).any()):
        raise InputError(
            f"{correct_q.tolist()} correct of {completions_q.tolist()} completions", "0 <= c <= n for each"
        )
    wrong_q = completions_q - correct_q
    fail_q = np.ones(len(completions_q))
    for i in range(k):
        fail_q *= np.maximum(wrong_q - i, 0) / (completions_q - i)
    return 1.0 - fail_q


def wilson(p: float, n: float) -> Estimate:
    """Return Wilson's 95 % score interval (JASA 22, 1927) of a share p of n independent trials."""
    denominator = 1 + Z95**2 / n
    middle = (p + Z95**2 / (2 * n)) / denominator
    half = Z95 / denominator * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n**2))
    return Estimate(p, min(p, max(0.0, middle - half)), max(p, min(1.0, middle + half)))


def t_quantile(df: int) -> float:
    """Return the 97.5 % point of Student's t with `df` degrees of freedom.

    It is exact for 1 to 4; above, it is expanded around the normal's (Fisher and Cornish 1960), within 0.001.
    """
    exact = (12.706205, 4.302653, 3.182446, 2.776445)
    if df <= len(exact):
        return exact[df - 1]
    z = Z95
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / df**power for power, term in enumerate(terms, start=1))


def mean_interval(value_q: NDArray[np.float64], least: float = -math.inf, most: float = math.inf) -> Estimate:
    """Return the mean and 95 % interval (Student's t) of per-prompt values of any range, [Q].

    Prompts are the independent units. The interval of a single prompt is unbounded. Otherwise it ends at `least` and
    `most`, the extremes of the values behind those of the prompts: few prompts with skewed values would otherwise give
    an interval that the mean of such values cannot reach.
    """
    count, mean = len(value_q), float(value_q.mean())
    if count == 1:
        return Estimate(mean, -math.inf, math.inf)
    half = t_quantile(count - 1) * float(value_q.std(ddof=1)) / math.sqrt(count)
    return Estimate(mean, min(mean, max(least, mean - half)), max(mean, min(most, mean + half)))


def interval(value_q: NDArray[np.float64], completions: int) -> Estimate:
    """Return the mean and 95 % interval of per-prompt values in [0, 1], [Q], with `completions` per prompt.

    Prompts are the independent units. Wilson's interval with the effective sample size p(1-p) / Var(mean)
    (Dean and Pagano 2015, Survey Methodology), at least Q and at most all completions; with one completion per prompt
    this is Wilson's interval itself. It neither leaves [0, 1] nor shrinks to a point when all completions are right or
    wrong.
    """
    count, p = len(value_q), float(value_q.mean())
    spread = float(value_q.var())
    effective = count * p * (1 - p) / spread if spread > 0 else count * (completions if 0 < p < 1 else 1)
    return wilson(p, min(max(effective, count), count * completions))
