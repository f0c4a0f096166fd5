"""Two workers taking turns on one job, and what their steps cost."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gate import Worker
from jobs import Job

UNMEASURED = 3
"""First steps of each worker, in which memory is found and kernels are chosen."""
Step = dict[str, Any]


@dataclass(frozen=True)
class Race:
    """The measured steps of both libraries, in pairs, and their peak memory in MiB (at the first step, at the end)."""

    ours: list[Step]
    theirs: list[Step]
    memory_ours: tuple[float, float]
    memory_theirs: tuple[float, float]

    def ratios(self, key: str) -> list[float]:
        """Their cost over ours, pair by pair."""
        return [theirs[key] / ours[key] for ours, theirs in zip(self.ours, self.theirs, strict=True)]


def run_race(job: Job, model: Path, scratch: Path, steps: int, quick: bool, tick: Callable[[], None]) -> Race:
    """Let both libraries take `steps` measured steps each, alternating, who begins changing every time."""
    total, mode = steps + UNMEASURED, "quick" if quick else "full"
    place = {who: scratch / f"{job.name.replace(' ', '-')}-{who}" for who in ("ours", "theirs")}
    for folder in place.values():
        shutil.rmtree(folder, ignore_errors=True)

    def worker(who: str) -> Worker:
        arguments = (job.name, str(model), str(place[who]), str(total), mode)
        return Worker(f"{who}.py", *arguments, log=scratch / f"{place[who].name}.log")

    with worker("ours") as ours, worker("theirs") as theirs:
        taken: dict[str, list[Step]] = {"ours": [], "theirs": []}
        for number in range(total):
            turns = [("ours", ours), ("theirs", theirs)]
            for who, each in turns if number % 2 else reversed(turns):
                taken[who].append(each.step())
            tick()
        memory = {who: (each.start["rss_mb"], taken[who][-1]["rss_mb"]) for who, each in turns}
    return Race(taken["ours"][UNMEASURED:], taken["theirs"][UNMEASURED:], memory["ours"], memory["theirs"])


def median(steps: list[Step], key: str) -> float:
    """Median of a cost."""
    return statistics.median(step[key] for step in steps)


def spread(values: list[float]) -> tuple[float, float]:
    """Lower and upper quartile."""
    lower, _, upper = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return lower, upper
