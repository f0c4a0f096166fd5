"""Trackio: a local store of runs, which `trackio show` displays."""

from __future__ import annotations

from collections.abc import Mapping

from trackio.sqlite_storage import SQLiteStorage

from grouprl.trackers.tracker import Outcome, TrackedRecord, TrackedRun


class Trackio:
    """Logs to a run of Trackio, whose steps are numbered as the records come: it has one axis for all phases.

    The store is written directly: `trackio.init` prints to standard output and writes from a thread, whose last records
    a killed process loses.
    """

    def __init__(self, run: TrackedRun, project: str) -> None:
        self._project, self._run, self._name = project, run, f"{run.name}-{run.id}"
        kept = SQLiteStorage.get_logs(project, self._name)
        self._last = {phase: int(step) for phase, step in _steps(kept).items()}
        self._number = max((int(each["step"]) for each in kept), default=-1)

    def last_steps(self) -> Mapping[str, int]:
        """Return what the store holds."""
        return self._last

    def log(self, record: TrackedRecord) -> None:
        """Store the numbers and the step of the phase."""
        self._number += 1
        values = {**record.values, f"{record.phase}/step": record.step}
        SQLiteStorage.bulk_log(self._project, self._name, [values], [self._number], config=self._run.settings())

    def close(self, outcome: Outcome) -> None:
        """Do nothing: every record is stored already."""


def open_trackio(run: TrackedRun, *, project: str = "grouprl") -> Trackio:
    """Return the tracker; its store is where `TRACKIO_DIR` says, and `trackio show --project grouprl` displays it."""
    return Trackio(run, project)


def _steps(kept: list[dict[str, object]]) -> dict[str, float]:
    """Return the last step of each phase."""
    last: dict[str, float] = {}
    for row in kept:
        for name, value in row.items():
            phase, _, rest = name.rpartition("/")
            if rest == "step" and phase and isinstance(value, (int, float)):
                last[phase] = max(last.get(phase, -1), value)
    return last
