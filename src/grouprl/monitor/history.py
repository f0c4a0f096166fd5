"""The inputs of the health report: facts about the run, and a running view of its records."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite, sqrt

from grouprl.core.json_types import JsonMapping

WINDOW = 10
"""Number of records over which a condition is averaged: one batch of a few dozen groups is too noisy."""
START = 5
"""Number of first records whose mean is the value 'at the start'."""
CLEARLY, CLEARLY_PAID = 0.05, 0.2
"""Rise of pass@1, and of the mean reward in deviations at the start: a mean of five batches of 64 completions has a
standard error of 0.06 deviations, and pass@1 one of at most 0.03."""


@dataclass(frozen=True)
class HealthFacts:
    """Facts about the run that findings need in addition to its metrics."""

    completions: int = 0
    """Completions of one rollout batch (prompts x completions per prompt); 0 if unknown."""
    groups_per_update: float = 0.0
    """Groups of an optimiser step; 0 if unknown."""
    updates_per_rollout: int = 1
    """Optimiser steps taken on one rollout batch."""
    exact_sampler: bool = True
    """Whether the sampler runs the trainer's own weights in the trainer's precision."""
    async_steps: int = 0
    """Largest number of steps by which completions may be sampled ahead of their update."""
    grouped: bool = True
    """Whether completions of a prompt are compared with each other, so that equal rewards leave nothing to learn."""
    waits: int = 0
    """Number of first steps in which the policy is not trained."""
    clips: bool = False
    """Whether the method's objective clips or caps a ratio."""
    kl_weight: float | None = None
    """Weight of the KL term to the reference; None if the method has none."""
    refill: bool = False
    """Whether zero-variance groups are replaced by further sampling."""
    refill_max_rounds: int = 0
    filters: tuple[str, ...] = ()
    """Names of the selection rules that drop completions."""
    max_tokens: int = 0
    """Token limit of a completion; 0 if unknown."""
    actions: bool = False
    """Whether the policy takes actions instead of writing tokens; findings are worded accordingly."""
    segments: bool = False
    """Whether episodes continue from step to step, so that the end of a step cuts them where no limit does."""
    reach: float = 0.0
    """Estimate, in nats per unit of the learning rate, of how far the updates of one rollout can move a log-prob; 0 if
    unknown."""
    fast: float = 0.0
    """Largest acceptable movement of a log-prob by one optimiser step, in nats; 0 if unknown."""
    blind: tuple[str, ...] = ()
    """What is rewarded in place of a verdict on right and wrong, in words of the parts that do so."""
    adapters: bool = False
    """Whether adapters are trained, whose size is not a measure of the weights that they change."""


@dataclass
class History:
    """Running view of the training records: last window, start, best window and extremes of each metric."""

    recent: deque[JsonMapping] = field(default_factory=lambda: deque(maxlen=WINDOW))
    evaluations: list[JsonMapping] = field(default_factory=list)
    demonstrated_turns: float = 0.0
    """Mean number of turns of the demonstrations of the last steps of the warm-up; 0 if it has none."""
    count: int = 0
    _total: dict[str, float] = field(default_factory=dict)
    _first: dict[str, list[float]] = field(default_factory=dict)
    _best: dict[str, float] = field(default_factory=dict)
    _noise: dict[str, float] = field(default_factory=dict)
    _peak: dict[str, float] = field(default_factory=dict)
    _low: dict[str, float] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)
    _opening: dict[str, float] = field(default_factory=dict)
    """Sum of the values of each metric in the first START records."""
    _window: dict[str, deque[tuple[int, float]]] = field(default_factory=dict)
    """The last finite values of each metric, each with the number of its record."""

    def add(self, record: JsonMapping) -> None:
        """Add the next training record."""
        self.recent.append(record)
        self.count += 1
        for name, value in record.items():
            if isinstance(value, (int, float)) and isfinite(value):
                self._window.setdefault(name, deque(maxlen=WINDOW)).append((self.count, value))
                self._take(name, float(value))

    def _take(self, name: str, value: float) -> None:
        self._seen[name] = self._seen.get(name, 0) + 1
        self._total[name] = self._total.get(name, 0.0) + value
        self._peak[name] = max(self._peak.get(name, 0.0), abs(value))
        self._low[name] = min(self._low.get(name, value), value)
        if self.count <= START:
            self._opening[name] = self._opening.get(name, 0.0) + value
        first = self._first.setdefault(name, [])
        if len(first) < START:
            first.append(value)
        if self._seen[name] >= START:
            window = self.values(name)
            self._best[name] = max(self._best.get(name, float("-inf")), sum(window) / len(window))
            self._noise[name] = max(self._noise.get(name, 0.0), _jitter(window))

    @property
    def graded(self) -> bool:
        """True if rewards are known to be graded, so that completions are not right or wrong."""
        return any(record.get("eval/graded") or record.get("eval/returns") for record in self.evaluations)

    def values(self, name: str) -> list[float]:
        """Return the finite values of `name` in the window, oldest first."""
        return [value for number, value in self._window.get(name, ()) if number > self.count - WINDOW]

    def mean(self, name: str) -> float | None:
        """Return the mean over the window, or None while fewer than START records have the metric."""
        if self.seen(name) < START or not (values := self.values(name)):
            return None
        return sum(values) / len(values)

    def start(self, name: str) -> float | None:
        """Return the mean of the first START records, or None if there are fewer."""
        first = self._first.get(name, [])
        return sum(first) / START if len(first) == START else None

    def opening(self, name: str) -> float:
        """Return the mean over the first START records, in which a record without the metric counts as 0."""
        return self._opening.get(name, 0.0) / START if self.count >= START else 0.0

    def untrained(self, name: str) -> float | None:
        """Return the value of `name` in the evaluation before training; without one, the mean of the first records."""
        first = next((each for each in self.evaluations if each.get("step") == 0), {})
        value = first.get(f"eval/{name}")
        return float(value) if isinstance(value, (int, float)) else self.start(name)

    def names(self, beginning: str) -> list[str]:
        """Return the names of the metrics that start with `beginning`, in the order in which they were first seen."""
        return [name for name in self._seen if name.startswith(beginning)]

    def best(self, name: str) -> float | None:
        """Return the largest window mean so far."""
        return self._best.get(name)

    def error(self, name: str) -> float:
        """Return the standard error of a window mean less a mean of START records, 0 before there is one.

        It is that of the noisiest window so far: a rare success leaves windows without any noise behind it.
        """
        return self._noise.get(name, 0.0) * sqrt(1 / START + 1 / WINDOW)

    def peak(self, name: str) -> float:
        """Return the largest absolute value so far (0 if there is none)."""
        return self._peak.get(name, 0.0)

    def low(self, name: str) -> float | None:
        """Return the smallest value so far."""
        return self._low.get(name)

    def seen(self, name: str) -> int:
        """Return the number of records that had a finite value of `name`."""
        return self._seen.get(name, 0)

    def total(self, name: str) -> float:
        """Return the sum of all finite values so far."""
        return self._total.get(name, 0.0)

    def last(self, name: str) -> float | None:
        """Return the value of `name` in the last record, finite or not, or None."""
        return self.recent[-1].get(name) if self.recent else None


def _jitter(values: list[float]) -> float:
    """Return the standard deviation of values around their trend, from the differences of neighbours (von Neumann)."""
    steps = [(after - before) ** 2 for before, after in pairwise(values)]
    return sqrt(sum(steps) / len(steps) / 2) if steps else 0.0


def improved(past: History) -> bool:
    """Return whether pass@1 is clearly above its start; the reward, where nothing is right or wrong."""
    return rise(past) is not None


def rise(past: History) -> str | None:
    """Return the name of what is clearly above its start, "pass@1" or "reward_mean"; None if it is not.

    Graded rewards may never reach what counts as right; they are asked then.
    """
    never = past.graded and past.peak("pass@1") < CLEARLY
    for name in ("reward_mean",) if never else ("pass@1", "reward_mean"):
        now, start = past.mean(name), past.start(name)
        if now is not None and start is not None:
            margin = CLEARLY if name == "pass@1" else CLEARLY_PAID * (past.start("reward_std") or 0.0)
            return name if now > start + margin else None
    return None


def percent(share: float) -> str:
    """Write a share as a percentage, with a decimal place if it is small."""
    value = 100 * share
    return f"{value:.0f} %" if value == 0 or abs(value) >= 9.95 else f"{value:.1f} %"
