"""Where the seconds of a step go."""

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
        """Return the sums and start again from zero."""
        taken, self.seconds = dict(self.seconds), defaultdict(float)
        return taken
