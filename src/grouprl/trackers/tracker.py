"""The protocol of a tracker, and what it is given."""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, cast

from grouprl.config.yaml_files import read_yaml
from grouprl.core.json_types import JsonMapping
from grouprl.storage.run_folder import RunFolder, write_text

Outcome = Literal["finished", "stopped", "failed"]
"""How a run ended, or stopped for now: complete, interrupted, or with an error."""
_ONE_MAKES_IT = threading.Lock()


@dataclass(frozen=True)
class TrackedRun:
    """A run as its trackers know it."""

    folder: Path
    name: str
    id: str
    """A name that no other run has; it stays the same when the run is resumed."""
    config: JsonMapping

    @property
    def own(self) -> Path:
        """The folder for files of trackers, below the run folder."""
        return self.folder / "trackers"

    def settings(self) -> dict[str, str]:
        """Return every setting as text, by its dotted key."""
        return {key: str(value) for key, value in _flat(self.config)}


@dataclass(frozen=True)
class TrackedRecord:
    """One line of metrics.jsonl: the numbers of a step of a phase ("train", "eval", "warmup", …)."""

    phase: str
    step: int
    values: Mapping[str, float]
    """Finite numbers by name; each name begins with the phase: `train/reward_mean`."""


class Tracker(Protocol):
    """A program that keeps a run's metrics.

    A tracker says itself what it has, because a killed process may lose what it had been given; what it lacks is sent
    again. Its methods are called in a thread of their own and may raise: the records are then sent later.
    """

    def last_steps(self) -> Mapping[str, int]:
        """Return the last step of each phase that is kept of this run, from earlier processes too."""

    def log(self, record: TrackedRecord) -> None:
        """Keep a record; those of one phase come in the order of their steps, each once."""

    def close(self, outcome: Outcome) -> None:
        """Write everything out; called once, however the run ended."""


def tracked_run(folder: Path) -> TrackedRun:
    """Return the run in `folder`, whose identity is made and stored there when it is first asked for."""
    run = RunFolder.open(folder)
    config = cast("JsonMapping", read_yaml(run.config.read_text(encoding="utf-8"), str(run.config)))
    return TrackedRun(folder, folder.name, _identity(folder), config)


def _identity(folder: Path) -> str:
    """Return what is stored; the trackers of a run ask for it at the same moment, each from its thread."""
    identity = folder / "trackers" / "id"
    with _ONE_MAKES_IT:
        if not identity.is_file():
            identity.parent.mkdir(exist_ok=True)
            write_text(identity, secrets.token_hex(8))  # of the system: the run's generators stay untouched
    return identity.read_text(encoding="utf-8").strip()


def tracked_record(line: Mapping[str, object]) -> TrackedRecord | None:
    """Return a line of metrics.jsonl as a record; None if it states no phase and step."""
    phase, step = line.get("phase"), line.get("step")
    if not isinstance(phase, str) or not isinstance(step, int):
        return None
    return TrackedRecord(phase, step, dict(_values(phase, line)))


def _values(phase: str, line: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    for name, value in line.items():
        if name in ("phase", "step") or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if math.isfinite(value):
            yield (name if name.startswith(f"{phase}/") else f"{phase}/{name}"), float(value)


def _flat(settings: JsonMapping, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
