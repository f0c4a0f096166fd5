"""Which tests a run takes: quick ones always, slow ones in turn, so that a few commits run them all.

`tests/durations.json` holds the measured seconds of every slow test, as `--record-durations` wrote them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pytest

Slow = Literal["all", "turn", "none"]
DURATIONS = Path(__file__).parents[1] / "durations.json"
LIMIT = 0.5
"""Seconds from which a test is slow."""
TURNS = 16
"""Commits in a row that together run every slow test."""


def read_durations() -> dict[str, float]:
    """Return the seconds of the slow tests by name."""
    found: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8"))
    return found


def commit_number(folder: Path) -> int:
    """Return the number of commits behind the checkout in `folder`; 0 outside a repository."""
    told = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=folder, capture_output=True, text=True)
    return int(told.stdout) if told.returncode == 0 else 0


def turns_of(durations: Mapping[str, float]) -> dict[str, int]:
    """Return the turn of each slow test, so that all turns take about as long: the longest first, to the shortest turn.

    The turns are others as soon as `durations` are.
    """
    seconds, turns = [0.0] * TURNS, {}
    for name, took in sorted(durations.items(), key=lambda each: (-each[1], each[0])):
        turns[name] = seconds.index(min(seconds))
        seconds[turns[name]] += took
    return turns


def is_taken(name: str, slow: Slow, number: int, turns: Mapping[str, int]) -> bool:
    """Return whether the commit of this number runs a test; `turns` has those of the slow tests."""
    return slow == "all" or name not in turns or (slow == "turn" and turns[name] == number % TURNS)


def take(items: list[pytest.Item], slow: Slow, number: int, durations: Mapping[str, float]) -> list[pytest.Item]:
    """Remove the tests that are not taken from `items`, in place; return them."""
    turns = turns_of(durations)
    left = [item for item in items if not is_taken(item.nodeid, slow, number, turns)]
    items[:] = [item for item in items if is_taken(item.nodeid, slow, number, turns)]
    return left


def longest_first(items: list[pytest.Item], durations: Mapping[str, float]) -> None:
    """Bring the files with the most slow tests to the front, in place: workers that take whole files end together."""
    seconds: dict[str, float] = {}
    for name, took in durations.items():
        file = name.partition("::")[0]
        seconds[file] = seconds.get(file, 0.0) + took
    items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], 0.0))


def slow_ones(reports: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Return the seconds of every slow test, of which `reports` holds the phases."""
    seconds: dict[str, float] = {}
    for name, took in reports:
        seconds[name] = seconds.get(name, 0.0) + took
    return {name: round(took, 1) for name, took in sorted(seconds.items()) if took >= LIMIT}


def without_turn(known: Mapping[str, float], reports: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Return the slow tests in `reports` that have no known duration and so always run, the slowest first."""
    found = {name: took for name, took in slow_ones(reports).items() if name not in known}
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def with_unmeasured(known: Mapping[str, float], reports: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Return `known` durations and those of slow tests in `reports` that had none."""
    return dict(sorted({**slow_ones(reports), **known}.items()))
