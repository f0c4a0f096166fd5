"""Taking turns: functions are called one after the other, round by round, so that disturbances hit all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Call = Callable[[], object]


@dataclass(frozen=True)
class Taken:
    """Wall-clock and processor seconds of one call."""

    wall: float
    cpu: float


def take(call: Call) -> Taken:
    """Time one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return Taken(time.perf_counter() - wall, time.process_time() - cpu)


def alternate(calls: Mapping[str, Call], rounds: int) -> dict[str, list[Taken]]:
    """Time each call `rounds` times after one unmeasured round, who begins changing every time."""
    names = list(calls)
    found: dict[str, list[Taken]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in names if number % 2 else reversed(names):
            taken = take(calls[name])
            if number:
                found[name].append(taken)
    return found


def cpu(taken: list[Taken]) -> float:
    """Median processor seconds."""
    return statistics.median(x.cpu for x in taken)


def ratios(over: list[Taken], under: list[Taken], key: str = "cpu") -> list[float]:
    """Cost of one over the other, round by round."""
    return [getattr(a, key) / getattr(b, key) for a, b in zip(over, under, strict=True)]
