"""The record of a run on disk: metrics.jsonl and the rollouts, written as the run announces them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow.parquet as pq

from grouprl.core.json_types import JsonObject
from grouprl.monitor.health import Health
from grouprl.protocols.run_events import (
    CheckpointWritten,
    EvaluationEnded,
    PhaseEnded,
    RolloutScored,
    RunBegan,
    RunEnded,
    RunListener,
    StepEnded,
)
from grouprl.storage.run_folder import RunFolder, replacing, write_json

SECONDS = 1.0
"""The shortest time between two writings of the same findings with other words."""


class RunRecord(RunListener):
    """Writes a line of metrics.jsonl per step and evaluation, and rollouts at regular intervals."""

    def __init__(self, run: RunFolder, rollouts_every: int) -> None:
        """Prepare; `rollouts_every` is the number of steps from one stored rollout to the next, 0 for none."""
        self.run, self.rollouts_every = run, rollouts_every

    def rollout(self, event: RolloutScored) -> None:
        """Write the completions of the step as a Parquet file, if one is due."""
        if self.rollouts_every and event.step % self.rollouts_every == 0:
            with replacing(self.run.rollout_file(event.step)) as temporary:
                pq.write_table(event.table(), temporary, compression="zstd")

    def step(self, event: StepEnded) -> None:
        """Append the record of the step."""
        self.run.append_metrics(event.record)

    def evaluation(self, event: EvaluationEnded) -> None:
        """Append the record of the evaluation."""
        self.run.append_metrics(event.record)


class HealthFile(RunListener):
    """Keeps health.json up to date while a run trains; it comes after the listener that examines the records.

    Numbers in the words of a finding change with most steps, and a step may take milliseconds: what has only other
    words is written at most once in `SECONDS`, and when a phase, a checkpoint or the run ends.
    """

    def __init__(self, run: RunFolder, health: Health) -> None:
        self.run, self.health = run, health
        self._written: list[JsonObject] | None = None
        self._due = 0.0

    def begin(self, event: RunBegan) -> None:
        """Write the findings of the records so far."""
        self._write()

    def step(self, event: StepEnded) -> None:
        """Write the findings if the step has changed them, and their words if it is time."""
        self._write(words=time.monotonic() >= self._due)

    def evaluation(self, event: EvaluationEnded) -> None:
        """Write the findings if the evaluation has changed them."""
        self._write()

    def checkpoint(self, event: CheckpointWritten) -> None:
        """Write the findings if they have changed."""
        self._write()

    def phase_end(self, event: PhaseEnded) -> None:
        """Write the findings if they have changed."""
        self._write()

    def end(self, event: RunEnded) -> None:
        """Write the findings if they have changed."""
        self._write()

    def _write(self, *, words: bool = True) -> None:
        found = [finding.as_row() for finding in self.health.findings()]
        if found == self._written or not (words or self._other_ones(found)):
            return
        write_json(self.run.health, found)
        self._written, self._due = found, time.monotonic() + SECONDS

    def _other_ones(self, found: list[JsonObject]) -> bool:
        """Return whether there are other findings than those written, whatever their words are."""
        return self._written is None or _names(found) != _names(self._written)


def _names(found: Sequence[JsonObject]) -> list[tuple[object, ...]]:
    return [(row.get("code"), row.get("severity"), row.get("key")) for row in found]
