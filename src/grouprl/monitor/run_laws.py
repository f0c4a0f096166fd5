"""The laws of `grouprl.monitor.laws` fitted to what a run has logged, with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping
from grouprl.monitor.laws import EntropyLaw, SigmoidLaw, fit_entropy_law, fit_sigmoid_law

Record = JsonMapping
Where = Literal["train", "eval"]
Compute = Literal["tokens", "steps", "seconds"]
RESAMPLES = 200
"""Bootstrap samples of a fit's points."""
COARSE = {"ceilings": 24, "precision": 0.02}
"""Settings of the sigmoid's fit to each resample: number of ceilings, relative step of the refinement."""
ENOUGH = 0.5
"""Least share of resamples that must allow a fit for an interval to be given."""


@dataclass(frozen=True)
class LawEstimate:
    """A fitted number with its 95 % interval, which is None if too few resamples of the points allow a fit."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Fitted:
    """A law fitted to one run."""

    law: str
    points: int
    r2: float
    numbers: Mapping[str, LawEstimate]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Curve:
    """Points of a run, [N] each: mean token entropy, compute so far, reward; the entropy is NaN where unknown."""

    entropy_n: Sequence[float]
    compute_n: Sequence[float]
    reward_n: Sequence[float]
    start: float
    """Reward before the first update."""


def curve(records: Sequence[Record], where: Where = "train", compute: Compute = "tokens") -> Curve:
    """Return the points of a run from its records (`metrics.jsonl`).

    `where="train"` takes pass@1 and entropy of the completions sampled in each step; "eval" held-out pass@1 with the
    entropy of the step that follows it, which the same policy sampled. Compute is what was spent before the point:
    tokens sampled, hints and probes included; steps; or seconds.

    Raises InputError if the run has no such records.
    """
    steps = [r for r in records if r.get("phase", "train") == "train" and "entropy" in r]
    if not steps:
        raise InputError("the run has no training steps with an entropy", "the laws are those of training")
    spent = list(accumulate((_cost(r, compute) for r in steps), initial=0.0))
    at = {int(r["step"]) - 1: (float(r["entropy"]), spent[i]) for i, r in enumerate(steps)}
    if where == "train":
        points = [(*at[int(r["step"]) - 1], float(r["pass@1"])) for r in steps if "pass@1" in r]
        if not points:
            raise InputError("the run has no pass@1 of its training steps", "its rewards are graded", "Take --of eval")
    else:
        last = (math.nan, spent[-1])
        points = [
            (*at.get(int(r["step"]), last), float(r["eval/pass@1"]))
            for r in records
            if r.get("phase") == "eval" and "eval/pass@1" in r
        ]
        if not points:
            raise InputError("the run has no evaluations", "eval.every says how often there is one")
    entropy_n, compute_n, reward_n = zip(*points, strict=True)
    return Curve(entropy_n, compute_n, reward_n, reward_n[0])


def _cost(record: Record, compute: Compute) -> float:
    if compute == "steps":
        return 1.0
    if compute == "seconds":
        return sum(float(x) for name, x in record.items() if name.startswith("seconds_"))
    return float(record.get("tokens_sampled", record.get("tokens", 0.0)))


def entropy_law(points: Curve, seed: int = 0) -> Fitted:
    """Fit R = -a·e^H + b to the points that have an entropy."""
    pairs = [(h, r) for h, r in zip(points.entropy_n, points.reward_n, strict=True) if math.isfinite(h)]

    def fit(rows: Sequence[tuple[float, float]]) -> EntropyLaw:
        return fit_entropy_law([h for h, _ in rows], [r for _, r in rows])

    law = fit(pairs)
    read = {"a": lambda x: x.a, "b": lambda x: x.b, "ceiling": lambda x: x.ceiling}
    return Fitted("entropy", len(pairs), law.r2, dict(_estimates(law, read, fit, pairs, seed)), law.warnings)


def sigmoid_law(points: Curve, skip: float = 0.0, seed: int = 0) -> Fitted:
    """Fit ScaleRL's sigmoid to the points with compute from `skip` on; R_0 is the reward before the first update."""
    pairs = [(c, r) for c, r in zip(points.compute_n, points.reward_n, strict=True) if c > 0 and c >= skip]

    def fit(rows: Sequence[tuple[float, float]]) -> SigmoidLaw:
        best = max((r for _, r in rows), default=points.start)
        tried = points.start + (best - points.start) * np.linspace(1.001, 3.0, int(COARSE["ceilings"]))
        c_n, r_n = [c for c, _ in rows], [r for _, r in rows]
        return fit_sigmoid_law(c_n, r_n, start=points.start, ceilings=list(tried), precision=COARSE["precision"])

    law = fit_sigmoid_law([c for c, _ in pairs], [r for _, r in pairs], start=points.start)
    read = {"ceiling": lambda x: x.ceiling, "exponent": lambda x: x.exponent, "midpoint": lambda x: x.midpoint}
    warnings = []
    if law.midpoint > max(c for c, _ in pairs):
        warnings.append("the run ends before half of the fitted gain: the ceiling is a guess")
    found = dict(_estimates(law, read, fit, pairs, seed))
    return Fitted(
        "sigmoid", len(pairs), law.r2, {"start": LawEstimate(points.start, None, None), **found}, (*warnings,)
    )


def _estimates(
    law: object,
    read: Mapping[str, Callable[[object], float]],
    fit: Callable[[Sequence[tuple[float, float]]], object],
    pairs: Sequence[tuple[float, float]],
    seed: int,
) -> Iterator[tuple[str, LawEstimate]]:
    """Yield each number with the 2.5 and 97.5 percentiles of fits to points resampled with replacement."""
    rng, fits = np.random.default_rng(seed), []
    for _ in range(RESAMPLES):
        try:
            fits.append(fit([pairs[i] for i in rng.integers(len(pairs), size=len(pairs))]))
        except InputError:  # a resample of too few different points allows no fit
            continue
    for name, value in read.items():
        if len(fits) < ENOUGH * RESAMPLES:
            yield name, LawEstimate(value(law), None, None)
        else:
            low, high = np.percentile([value(one) for one in fits], [2.5, 97.5])
            yield name, LawEstimate(value(law), float(low), float(high))
