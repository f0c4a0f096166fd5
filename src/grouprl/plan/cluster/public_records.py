"""Step times that other libraries have published, beside what the arithmetic says of the same work.

The ratio of measured to planned time is taken as log-normal: its geometric mean corrects a planned time, and its spread
gives an interval. Releases that measured the same configuration count as one (the geometric mean of their ratios), for
they are not independent evidence. A record is judged by the other configurations alone (leave-one-out).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import fmean, stdev
from typing import Any

from grouprl.plan.cluster.hardware import parse_cluster
from grouprl.plan.cluster.placement import placements
from grouprl.plan.cluster.roofline import Efficiency
from grouprl.plan.cluster.workload import Workload

GROUP = 32
"""Completions per prompt in the records' recipes."""
STUDENT = {1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015, 6: 1.943, 7: 1.895, 8: 1.860, 9: 1.833}
"""95 % points of Student's t by degrees of freedom: two-sided intervals of 90 %."""
MISSED = 1.3
"""Factor from which a record counts as missed."""


@dataclass(frozen=True)
class PublishedStep:
    """A record: its measured seconds a step, the arithmetic's, and those predicted with the other configurations'
    ratio.
    """

    configuration: str
    release: str
    measured: float
    planned: float
    predicted: float

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted / self.measured - 1

    @property
    def missed(self) -> bool:
        """Return whether the prediction is off by more than a factor of 1.3."""
        return max(self.predicted / self.measured, self.measured / self.predicted) > MISSED


@dataclass(frozen=True)
class Likely:
    """A corrected time in seconds, with an interval of 90 %."""

    low: float
    middle: float
    high: float


def work_of(record: dict[str, Any], model: dict[str, Any]) -> Workload:
    """Return the work of a step of a record. A prompt has the tokens of a row, by the record's rate, beyond those of a
    completion.
    """
    accelerators = parse_cluster(record["on"]).count
    row = record["tokens_per_second_each"] * accelerators * record["seconds"] / record["rows"]
    prompt = row - record["completion_tokens"]
    return Workload(
        **model,
        trainable=model["parameters"],
        prompts=record["rows"] // GROUP,
        group_size=GROUP,
        prompt_tokens=prompt,
        completion_tokens=record["completion_tokens"],
        longest=round(record["longest_row"] - prompt),
        updates=record["rows"] // record["rows_per_update"],
        passes=1,
        scorings=1,
        steps=1,
    )


Measured = tuple[str, str, float, float]
"""A configuration, the release that measured it, and the measured and planned seconds of a step."""


def judged(records: Sequence[Measured]) -> tuple[PublishedStep, ...]:
    """Return the records with the prediction of each by the ratios of the other configurations.

    Args:
        records: measurements of at least two configurations.
    """
    found = ratios(records)

    def predicted(configuration: str, planned: float) -> float:
        return planned * math.exp(fmean(math.log(x) for name, x in found.items() if name != configuration))

    return tuple(PublishedStep(*record, predicted(record[0], record[3])) for record in records)


def ratios(records: Sequence[Measured]) -> dict[str, float]:
    """Return measured over planned seconds by configuration: the geometric mean over its releases."""
    logs: dict[str, list[float]] = {}
    for configuration, _, measured, planned in records:
        logs.setdefault(configuration, []).append(math.log(measured / planned))
    return {configuration: math.exp(fmean(each)) for configuration, each in logs.items()}


def likely(seconds: float, ratios: Sequence[float]) -> Likely:
    """Return a planned time corrected by measured ratios, with the 90 % interval of a further one."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = fmean(logs)
    half = STUDENT[len(logs) - 1] * stdev(logs) * math.sqrt(1 + 1 / len(logs))
    low, mid, high = (seconds * math.exp(each) for each in (middle - half, middle, middle + half))
    return Likely(low, mid, high)


@cache
def public_records() -> tuple[PublishedStep, ...]:
    """Return all records, judged."""
    return judged(_records())


def public_ratios() -> tuple[float, ...]:
    """Return measured over planned seconds of each published configuration."""
    return tuple(ratios(_records()).values())


@cache
def _records() -> tuple[Measured, ...]:
    data = json.loads(files(__package__).joinpath("public_records.json").read_text(encoding="utf-8"))
    found = []
    for record in data["records"]:
        work, cluster = work_of(record, data["models"][record["model"]]), parse_cluster(record["on"])
        planned = min(each.seconds for each in placements(work, cluster, Efficiency()) if each.kind == record["kind"])
        name = f"{record['model']} on {record['on']}, {record['kind']}"
        found.append((name, record["release"], float(record["seconds"]), planned))
    return tuple(found)
