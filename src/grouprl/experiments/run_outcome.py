"""The outcome of a finished run: its curve over the budget, its final measure, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from grouprl.core.errors import InputError, suggest
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.evaluation.gain import SUFFIXES
from grouprl.experiments.aggregates import Floats
from grouprl.experiments.budget import Unit, spent

LAST = 10
"""Training steps at the end of a run over which its health is averaged."""
HEALTH = ("groups_zero_variance", "entropy", "truncated_fraction", "length_mean", "clip_fraction", "kl_old")
"""Metrics of training that a comparison shows beside its result."""


@dataclass(frozen=True)
class RunOutcome:
    """A run as a comparison sees it; `error` is "" unless the run failed."""

    x: tuple[float, ...]
    """[P] what had been spent at each evaluation, in the budget's unit."""
    measures: Mapping[str, tuple[float, ...]]
    """[P] by measure ("eval/pass@1"): its values at these evaluations."""
    costs: Mapping[str, float]
    """Spent in all, by unit."""
    health: Mapping[str, float]
    """Metrics of training: those of `HEALTH`, means of the last steps, and `dead_groups`, the mean of all steps."""
    error: str = ""
    alarms: Mapping[str, str] = field(default_factory=dict)
    """By code: what the health report of the run says of each alarm."""

    def as_json(self) -> JsonObject:
        """Return the outcome as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: JsonMapping) -> RunOutcome:
        """Read what `as_json` returned."""
        return cls(
            tuple(data["x"]),
            {name: tuple(values) for name, values in data["measures"].items()},
            data["costs"],
            data["health"],
            data.get("error", ""),
            data.get("alarms", {}),
        )

    def curve(self, measure: str, amount: float, points: int) -> Floats:
        """Return [P] the measure at even places from 0 to `amount`, straight lines between evaluations.

        Before the first and after the last evaluation the curve is level.

        Raises:
            InputError: the run has no such measure.
        """
        return np.interp(np.linspace(0.0, amount, points), self.x, self.values(measure))

    def final(self, measure: str) -> float:
        """Return the last value of a measure. Raises InputError: the run has no such measure."""
        return self.values(measure)[-1]

    def values(self, measure: str) -> tuple[float, ...]:
        """Return the values of a measure at all evaluations. Raises InputError: the run has no such measure."""
        if measure not in self.measures:
            known = suggest(measure, self.measures)
            raise InputError(f"the runs have no measure '{measure}'", "it must be one of their evaluations", known)
        return self.measures[measure]


def area(curve_p: Floats) -> float:
    """Return the mean height of a curve at even places: the area under it per unit of budget (trapezoids)."""
    inner = curve_p[1:-1].sum() + (curve_p[0] + curve_p[-1]) / 2
    return float(inner / (len(curve_p) - 1)) if len(curve_p) > 1 else float(curve_p[0])


def outcome_of(
    records: Sequence[Mapping[str, object]],
    unit: Unit,
    error: str = "",
    findings: Sequence[Mapping[str, object]] = (),
) -> RunOutcome:
    """Return the outcome of a run from the records of its metrics.jsonl, and the findings of its health.json."""
    steps = [record for record in records if record.get("phase") == "train"]
    evaluated: dict[int, Mapping[str, object]] = {}
    for record in records:  # of two evaluations at one step the later one counts: the final one has more prompts
        if record.get("phase") == "eval":
            evaluated[_step(record)] = record
    points = sorted(evaluated)
    return RunOutcome(
        tuple(spent(unit, [each for each in steps if _step(each) <= point]) for point in points),
        _measures([evaluated[point] for point in points]),
        {each: round(spent(each, steps), 3) for each in ("tokens", "trained", "steps", "seconds")},
        _health(steps),
        error,
        {str(each["code"]): str(each["text"]) for each in findings if each["severity"] == "alarm"},
    )


def _measures(records: Sequence[Mapping[str, object]]) -> dict[str, tuple[float, ...]]:
    """Return every measure that all the evaluations have, without its interval and gain."""
    names = [n for n in (records[0] if records else ()) if n.startswith("eval/") and not n.endswith(SUFFIXES)]
    shared = [name for name in names if all(name in record for record in records)]
    return {name: tuple(_number(record[name]) for record in records) for name in shared}


def _health(steps: Sequence[Mapping[str, object]]) -> dict[str, float]:
    last = steps[-LAST:]
    found = {name: [_number(each[name]) for each in last if name in each] for name in HEALTH}
    found["dead_groups"] = [_number(each["groups_zero_variance"]) for each in steps if "groups_zero_variance" in each]
    return {name: float(np.mean(values)) for name, values in found.items() if values}


def _step(record: Mapping[str, object]) -> int:
    return int(_number(record.get("step", 0)))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
