"""Clocks for a run and its steps, and for the parts of a step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up wall-clock seconds under names; `with watch("score"): …`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time the block under `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start

    def read(self) -> dict[str, float]:
        """Return the sums in seconds by name, and start again from zero."""
        taken, self.seconds = dict(self.seconds), defaultdict(float)
        return taken


class Timer:
    """`with timer: …` sets `taken` to the seconds that the block took."""

    taken = 0.0

    def __enter__(self) -> Timer:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.taken = time.perf_counter() - self._start


class TrainingClock:
    """The seconds of a run without pauses, starting from `before`; `step` holds those of the current step."""

    def __init__(self, before: float) -> None:
        self._before, self._start = before, time.perf_counter()
        self.step = Timer()

    def elapsed(self) -> float:
        """Return the seconds since the run began, without pauses."""
        return self._before + time.perf_counter() - self._start
