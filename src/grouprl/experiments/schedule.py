"""Making runs in processes side by side; those that a store holds already are not repeated."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Protocol

from grouprl.core.errors import InputError, RunError
from grouprl.experiments.design import Trial
from grouprl.experiments.run_outcome import RunOutcome
from grouprl.experiments.trial_main import OUTCOME, main, write_spec
from grouprl.processes.child_process import LoggedProcess, how_it_ended
from grouprl.storage.run_folder import settle

GLANCE = 0.2
"""Seconds between looks at the processes."""
GRACE = 10.0
"""Seconds in which a run may end its step and write a checkpoint when the comparison is interrupted."""
SHOWN_BYTES = 2000
OWN_ERROR = r"^grouprl\.core\.errors\.\w+: "
"""Matches the class that Python prints before what is said in words."""
Tell = Callable[[Trial, RunOutcome, bool], None]
"""Callback for each outcome: the run, what it came to, and whether it had been made before."""


class RunProcess(Protocol):
    """The process of a run, here or elsewhere: the part of `subprocess.Popen` that a schedule needs."""

    @property
    def returncode(self) -> int | None:
        """Its exit code; None until it is known to have ended."""
        ...

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        ...

    def wait(self, timeout: float) -> int:
        """Return the exit code once the process has ended. Raises subprocess.TimeoutExpired."""
        ...

    def last_output(self, most: int) -> str:
        """Return the end of its output."""
        ...

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, if it still runs."""
        ...

    def end(self) -> None:
        """Kill the process with its children."""
        ...


def local_process(folder: Path) -> LoggedProcess:
    """Start the process that makes the run of a trial's folder, on this machine and one core."""
    settle(folder)
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return LoggedProcess(main, folder, environment={**os.environ, **threads})


@dataclass(frozen=True)
class TrialPlace:
    """A place to make runs in: `start` begins one, and `room` of them fit side by side."""

    start: Callable[[Path], RunProcess]
    room: int


@dataclass(frozen=True)
class Store:
    """The folder in which runs are kept by content, where missing ones are made, and how many at the same time."""

    folder: Path
    workers: int
    start: Callable[[Path], RunProcess] = local_process

    def place(self, trial: Trial) -> Path:
        """Return the folder of a run of these contents, whatever words it was made under, or where it will be."""
        named = trial.folder(self.folder)
        made = [] if named.is_dir() else sorted(self.folder.glob(f"*-{trial.key}"))
        return made[0] if made else named

    def known(self, trial: Trial) -> RunOutcome | None:
        """Return the outcome of a run that has been made; None if there is none."""
        path = self.place(trial) / OUTCOME
        try:
            return RunOutcome.from_json(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} cannot be read: {error}", "it is the outcome of a run", "Remove it") from error

    def missing(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the runs that have to be made, each once."""
        return [trial for trial in {each.key: each for each in trials}.values() if self.known(trial) is None]

    def outcomes(self, trials: Sequence[Trial], tell: Tell) -> dict[str, RunOutcome]:
        """Return the outcome of every run by its key, after making those that are missing.

        Raises:
            RunError: processes ended without an outcome; all other runs are made first, and kept.
            InputError: an outcome cannot be read.
            KeyboardInterrupt: the user interrupts; runs write a checkpoint first.
        """
        found = {each.key: known for each in trials if (known := self.known(each)) is not None}
        for each in {trial.key: trial for trial in trials if trial.key in found}.values():
            tell(each, found[each.key], True)
        made, failures = self._made(self.missing(trials), tell)
        if failures:
            kept = "Runs that have ended are kept, and the same command makes the others."
            raise RunError("\n".join([*failures, kept]))
        return found | made

    def _made(self, waiting: list[Trial], tell: Tell) -> tuple[dict[str, RunOutcome], list[str]]:
        """Make runs, and return their outcomes and what is to be said of those that have none."""
        found, failures = {}, []
        with _processes() as running:
            while waiting or running:
                while waiting and len(running) < self.workers:
                    running.append((waiting[0], self._started(waiting.pop(0))))
                time.sleep(GLANCE)
                for pair in [pair for pair in running if pair[1].poll() is not None]:
                    running.remove(pair)
                    said = _said_last(pair[1])
                    if (outcome := self.known(pair[0])) is None:
                        failures.append(f"the run {pair[0].words} {said}. Its folder is {self.place(pair[0])}.")
                    else:
                        found[pair[0].key] = outcome
                        tell(pair[0], outcome, False)
        return found, failures

    def _started(self, trial: Trial) -> RunProcess:
        folder = self.place(trial).absolute()
        write_spec(folder, trial.settings, trial.budget)
        return self.start(folder)


def _said_last(process: RunProcess) -> str:
    """End what is left of a process that has ended, and return how it did, with the last line of its output."""
    said, code = process.last_output(SHOWN_BYTES), process.returncode or 0
    process.end()
    last = said.splitlines()[-1] if said else "it said nothing"
    return f"{how_it_ended(code)}: {re.sub(OWN_ERROR, '', last).rstrip('.')}"


@contextmanager
def _processes() -> Iterator[list[tuple[Trial, RunProcess]]]:
    """Yield a list for running processes; what is left in it is asked to stop, and then ended."""
    running: list[tuple[Trial, RunProcess]] = []
    try:
        yield running
    finally:
        try:
            _stop([process for _, process in running])
        finally:  # a second interruption ends them at once
            for _, process in running:
                process.end()


def _stop(running: Sequence[RunProcess]) -> None:
    """Ask processes to stop, and wait a while until they have."""
    for process in running:
        process.send_signal(signal.SIGINT)
    until = time.monotonic() + GRACE
    for process in running:
        with suppress(TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
