"""The gain from one evaluation to another of the same prompts, with an interval of the difference.

Held-out prompts differ in difficulty far more than a run changes them. Two evaluations of the same prompts share that
spread, so the interval of their difference is narrower than a comparison of two intervals suggests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.core.numbers import is_number
from grouprl.evaluation.pass_at_k import Estimate, interval, mean_interval

SUFFIXES = ("_low", "_high", "_gain")
"""Endings of the names in a record that belong to a measure: `eval/reward/right_gain_low` to `eval/reward/right`."""


@dataclass(frozen=True)
class PromptValues:
    """One measure of an evaluation by prompt."""

    values: tuple[float | None, ...]
    """[Q] the value of each held-out prompt, in their order; None where it is unknown."""
    completions: int
    """Number of completions behind a value."""
    shares: bool
    """Whether each completion counts as 0 or 1, so that the interval is Wilson's."""
    least: float = -math.inf
    most: float = math.inf
    """Extremes of the values of single completions, beyond which no interval of a mean reaches."""

    @classmethod
    def of(
        cls,
        value_q: NDArray[np.float64],
        completions: int,
        *,
        shares: bool,
        least: float = -math.inf,
        most: float = math.inf,
    ) -> PromptValues:
        """Return the values in an array [Q], in which NaN marks unknown ones."""
        values = tuple(value if math.isfinite(value) else None for value in value_q.tolist())
        return cls(values, completions, shares, least, most)

    @property
    def value_q(self) -> NDArray[np.float64]:
        """The values as an array [Q], with NaN for unknown ones."""
        return np.array([math.nan if value is None else value for value in self.values], np.float64)

    @property
    def known(self) -> bool:
        """True if the value of some prompt is known."""
        return any(value is not None for value in self.values)

    def estimate(self) -> Estimate:
        """Estimate the mean over the prompts whose value is known, at least one."""
        known_q = self.value_q[np.isfinite(self.value_q)]
        shares = self.shares
        return interval(known_q, self.completions) if shares else mean_interval(known_q, self.least, self.most)

    def only(self, kept_q: NDArray[np.bool_]) -> PromptValues:
        """Return the values of the first prompts, those that `kept_q` [N] marks."""
        kept = zip(self.values, kept_q.tolist(), strict=False)
        return replace(self, values=tuple(value for value, keep in kept if keep))

    def as_json(self) -> JsonObject:
        """Return the values as JSON, with null for unknown ones."""
        rest = {name: value for name, value in vars(self).items() if name != "values" and math.isfinite(value)}
        return {"values": list(self.values), **rest}

    @classmethod
    def from_json(cls, data: JsonMapping) -> PromptValues:
        """Read what `as_json` returned."""
        return cls(**{**data, "values": tuple(data["values"])})


def difference(before: Estimate, after: Estimate, correlation: float = 0.0) -> Estimate:
    """Return `after` less `before`, with a 95 % interval made of both intervals and their correlation.

    The method MOVER of Zou and Donner (Statistics in Medicine 27, 2008), which for shares with Wilson's intervals is
    Newcombe's for paired proportions (Statistics in Medicine 17, 1998, method 10 without its continuity correction).
    Unlike Student's interval of the differences it does not shrink to a point where all prompts gain alike.
    """
    old_down, old_up = before.value - before.low, before.high - before.value
    new_down, new_up = after.value - after.low, after.high - after.value
    gain = after.value - before.value
    return Estimate(gain, gain - _joined(new_down, old_up, correlation), gain + _joined(new_up, old_down, correlation))


def _joined(a: float, b: float, correlation: float) -> float:
    return math.sqrt(max(0.0, a * a + b * b - 2 * correlation * a * b)) if math.isfinite(a + b) else math.inf


def gains(before: Mapping[str, PromptValues], after: Mapping[str, PromptValues]) -> dict[str, Estimate]:
    """Return the gain of each measure that both evaluations have, over the prompts that both have.

    One evaluation may have more prompts than the other: both begin with the same ones.
    """
    found = {name: paired(before[name], each) for name, each in after.items() if name in before}
    return {name: gain for name, gain in found.items() if gain is not None}


def paired(before: PromptValues, after: PromptValues) -> Estimate | None:
    """Return the gain over the prompts that both have; None if these are fewer than two."""
    count = min(len(before.value_q), len(after.value_q))
    kept_q = np.isfinite(before.value_q[:count]) & np.isfinite(after.value_q[:count])
    if kept_q.sum() < 2:
        return None
    old, new = before.only(kept_q), after.only(kept_q)
    return difference(old.estimate(), new.estimate(), _correlation(old.value_q, new.value_q))


def _correlation(a_q: NDArray[np.float64], b_q: NDArray[np.float64]) -> float:
    """Return Pearson's correlation of [Q] and [Q]; 0 if either has no spread."""
    if np.ptp(a_q) == 0 or np.ptp(b_q) == 0:
        return 0.0
    return float(np.corrcoef(a_q, b_q)[0, 1])


def recorded_gain(before: JsonMapping, after: JsonMapping, name: str) -> Estimate | None:
    """Return the gain in the measure `name` ("eval/pass@1") between two records of evaluations.

    It is the paired one that the later record holds, if any: it counts from the evaluation before training, which
    has no gain itself. Otherwise both evaluations count as if made of different prompts, which makes the interval
    wider. None if a record lacks the measure or its interval.
    """
    stated = _read(after, (f"{name}_gain", f"{name}_gain_low", f"{name}_gain_high"))
    if stated is not None and f"{name}_gain" not in before:
        return stated
    old, new = (_read(record, (name, f"{name}_low", f"{name}_high")) for record in (before, after))
    return None if old is None or new is None else difference(old, new)


def _read(record: JsonMapping, names: tuple[str, str, str]) -> Estimate | None:
    found = [record.get(name) for name in names]
    values = [float(x) for x in found if is_number(x)]
    return Estimate(*values) if len(values) == len(names) else None
