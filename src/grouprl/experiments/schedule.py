"""Making runs in processes side by side; those that a store holds already are not repeated."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired

from grouprl.core.errors import InputError, RunError
from grouprl.experiments.design import Trial
from grouprl.experiments.run_outcome import RunOutcome
from grouprl.experiments.trial_main import OUTCOME, main, write_spec
from grouprl.processes.child_process import LoggedProcess, how_it_ended
from grouprl.processes.usage import core_count
from grouprl.storage.run_folder import settle

GLANCE = 0.2
"""Seconds between looks at the processes."""
GRACE = 10.0
"""Seconds in which a run may end its step and write a checkpoint when the comparison is interrupted."""
SHOWN_BYTES = 2000
Tell = Callable[[Trial, RunOutcome, bool], None]
"""Callback for each outcome: the run, what it came to, and whether it had been made before."""


@dataclass(frozen=True)
class Store:
    """The folder in which runs are kept by content, and how many are made at the same time."""

    folder: Path
    workers: int

    def known(self, trial: Trial) -> RunOutcome | None:
        """Return the outcome of a run that has been made; None if there is none."""
        path = trial.folder(self.folder) / OUTCOME
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
            RunError: a process failed; others are ended at their last checkpoint, and outcomes are kept.
            InputError: the settings of a run do not fit.
            KeyboardInterrupt: the user interrupts; runs write a checkpoint first.
        """
        found = {each.key: known for each in trials if (known := self.known(each)) is not None}
        for each in {trial.key: trial for trial in trials if trial.key in found}.values():
            tell(each, found[each.key], True)
        waiting = self.missing(trials)
        with _processes() as running:
            while waiting or running:
                while waiting and len(running) < self.workers:
                    running.append((waiting[0], self._started(waiting.pop(0))))
                time.sleep(GLANCE)
                for pair in [pair for pair in running if pair[1].poll() is not None]:
                    running.remove(pair)
                    found[pair[0].key] = self._ended(*pair)
                    tell(pair[0], found[pair[0].key], False)
        return found

    def _started(self, trial: Trial) -> LoggedProcess:
        folder = trial.folder(self.folder)
        if folder.is_dir():
            settle(folder)
        write_spec(folder, trial.settings, trial.budget)
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        return LoggedProcess(main, folder, environment={**os.environ, **threads})

    def _ended(self, trial: Trial, process: LoggedProcess) -> RunOutcome:
        """Return the outcome of a process that has ended."""
        said, code = process.last_output(SHOWN_BYTES), process.returncode
        process.end()
        outcome = self.known(trial)
        if outcome is None:
            last = said.splitlines()[-1] if said else ""
            raise RunError(
                f"the run {trial.words} {how_it_ended(code)}: {last or 'it said nothing'}. Its folder is "
                f"{trial.folder(self.folder)}. Runs that have ended are kept, and the same command makes the others."
            )
        return outcome


@contextmanager
def _processes() -> Iterator[list[tuple[Trial, LoggedProcess]]]:
    """Yield a list for running processes; what is left in it is asked to stop, and then ended."""
    running: list[tuple[Trial, LoggedProcess]] = []
    try:
        yield running
    finally:
        for _, process in running:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)
        until = time.monotonic() + GRACE
        for _, process in running:
            with suppress(TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            process.end()


def workers_of(given: int | None) -> int:
    """Return how many runs are made side by side: as asked for, else one per core."""
    return core_count() if given is None else given
