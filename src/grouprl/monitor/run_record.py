"""The record of a run on disk: metrics.jsonl and the rollouts, written as the run announces them."""

from __future__ import annotations

import pyarrow.parquet as pq

from grouprl.core.json_types import JsonObject
from grouprl.monitor.health import Health
from grouprl.protocols.run_events import EvaluationEnded, RolloutScored, RunBegan, RunListener, StepEnded
from grouprl.storage.run_folder import RunFolder, replacing, write_json


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
    """Keeps health.json up to date while a run trains; it stands behind the listener that examines the records."""

    def __init__(self, run: RunFolder, health: Health) -> None:
        self.run, self.health = run, health
        self._written: list[JsonObject] | None = None

    def begin(self, event: RunBegan) -> None:
        """Write the findings of the records so far."""
        self._write()

    def step(self, event: StepEnded) -> None:
        """Write the findings if the step has changed them."""
        self._write()

    def evaluation(self, event: EvaluationEnded) -> None:
        """Write the findings if the evaluation has changed them."""
        self._write()

    def _write(self) -> None:
        found = [finding.as_row() for finding in self.health.findings()]
        if found != self._written:
            write_json(self.run.health, found)
            self._written = found
