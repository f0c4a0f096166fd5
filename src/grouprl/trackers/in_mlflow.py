"""MLflow: a run of an experiment, in a database or on a server."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from grouprl.trackers.tracker import Outcome, TrackedRecord, TrackedRun

STATUS: Mapping[Outcome, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
TAG = "grouprl.id"
AT_ONCE = 100
"""Settings that one call may send, by MLflow's own limit."""
LONGEST = 500
"""Largest number of characters of a setting that older servers accept."""


class MLflow:
    """Logs to the run that carries this run's identity as a tag."""

    def __init__(self, client: MlflowClient, run_id: str, phases: Mapping[str, int]) -> None:
        self._client, self._run_id, self._last = client, run_id, phases
        self._whole: set[str] = set()

    def last_steps(self) -> Mapping[str, int]:
        """Return what the experiment holds."""
        return self._last

    def log(self, record: TrackedRecord) -> None:
        """Log the numbers at the step of their phase, in one call; the step itself comes last, after all the others."""
        now = int(time.time() * 1000)
        values = {**record.values, f"{record.phase}/step": float(record.step)}
        metrics = [Metric(metric_name(name), value, now, record.step) for name, value in values.items()]
        if record.phase not in self._whole:
            metrics = self._without_held(metrics)
        self._whole.discard(record.phase)
        self._client.log_batch(self._run_id, metrics)
        self._whole.add(record.phase)

    def _without_held(self, metrics: list[Metric]) -> list[Metric]:
        """Return the metrics that the run lacks: a call that failed or was killed may leave a part."""
        names = self._client.get_run(self._run_id).data.metrics
        return [each for each in metrics if each.key not in names or not self._holds(each)]

    def _holds(self, metric: Metric) -> bool:
        return any(each.step == metric.step for each in self._client.get_metric_history(self._run_id, metric.key))

    def close(self, outcome: Outcome) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self._run_id, STATUS[outcome])


def open_mlflow(run: TrackedRun, *, uri: str | None = None, experiment: str = "grouprl") -> MLflow:
    """Return the tracker: at `uri` (default: as `MLFLOW_TRACKING_URI` says), in the named experiment."""
    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    place = client.create_experiment(experiment) if found is None else found.experiment_id
    begun = client.search_runs([place], f"tags.`{TAG}` = '{run.id}'", max_results=1)
    if begun:
        identity = begun[0].info.run_id
        client.update_run(identity, status="RUNNING")
        steps = {k.removesuffix("/step"): int(v) for k, v in begun[0].data.metrics.items() if k.endswith("/step")}
        return MLflow(client, identity, steps)
    identity = client.create_run(place, run_name=run.name, tags={TAG: run.id}).info.run_id
    params = [Param(plain(key), value[:LONGEST]) for key, value in run.settings().items()]
    for at in range(0, len(params), AT_ONCE):
        client.log_batch(identity, params=params[at : at + AT_ONCE])
    return MLflow(client, identity, {})


def metric_name(name: str) -> str:
    """Return the name of a metric as MLflow takes it, with its phase as the only folder.

    A store of files keeps `a/b` in a folder `a`, which cannot be the file of a metric `a` as well.
    """
    phase, slash, rest = name.partition("/")
    return plain(phase + slash + rest.replace("/", "."))


def plain(name: str) -> str:
    """Return a name as MLflow takes it: letters, digits and `_-. :/`; other characters become their numbers."""
    return re.sub(r"[^A-Za-z0-9_\-. :/]", lambda found: f"_{ord(found[0]):x}_", name)
