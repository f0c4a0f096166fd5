"""The runs of a comparison on the machines of a Ray cluster, which share the folder that keeps them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Protocol, cast

from grouprl.core.errors import InputError, RunError
from grouprl.experiments.schedule import SHOWN_BYTES, RunProcess, TrialPlace, local_process
from grouprl.experiments.trial_main import SPEC
from grouprl.orchestrator.on_ray.cluster_info import look
from grouprl.orchestrator.on_ray.ray_host import GRACE, PATIENCE, connect, imported_ray
from grouprl.processes.child_process import LoggedProcess
from grouprl.processes.liveness import PeerWatch

TRIES = 3
"""Number of times that Ray restarts a run whose machine or worker was lost; it continues at its last checkpoint."""
LOST = -signal.SIGKILL
"""Exit code of a run whose worker was lost too often."""


class TrialRoom:
    """An actor of Ray with the process of one run, which ends when the actor does."""

    def __init__(self, working_folder: str) -> None:
        self._working_folder = working_folder
        self._process: LoggedProcess | None = None

    def make(self, folder: str) -> tuple[int, str]:
        """Make, or continue, the run of a folder, and return the exit code and the end of its output.

        Raises:
            RunError: this machine has no such folder.
        """
        for path in (Path(self._working_folder), Path(folder) / SPEC):
            if not path.exists():
                raise RunError(
                    f"{os.uname().nodename} has no {path}: a comparison on Ray keeps its runs in a folder that all its "
                    "machines share. Start it in a shared folder, and give --folder one"
                )
        os.chdir(self._working_folder)
        self._process = local_process(Path(folder))
        code = self._process.wait()
        said = self._process.last_output(SHOWN_BYTES)
        self._process.end()
        return code, said

    def interrupt(self, number: int) -> None:
        """Send a signal to the run, which writes a checkpoint at an interrupt."""
        if self._process is not None:
            self._process.send_signal(number)


class _TrialMethod(Protocol):
    def remote(self, *arguments: object) -> object: ...


class _TrialActor(Protocol):
    make: _TrialMethod
    interrupt: _TrialMethod


class RayProcess:
    """A run in a room on some machine of the cluster, with what the schedule needs of a process."""

    def __init__(self, room: object, folder: Path, head: PeerWatch) -> None:
        self._room, self._head = cast("_TrialActor", room), head
        self._made = self._room.make.remote(str(folder))
        self._said = ""
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None while the run is being made. Raises RunError if Ray's head is gone."""
        self._head.check()
        return self._after(0.0)

    def wait(self, timeout: float) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired."""
        code = self._after(timeout)
        if code is None:
            raise TimeoutExpired("a run on Ray", timeout)
        return code

    def last_output(self, most: int) -> str:
        """Return the end of the output of a run that has ended, at most `most` characters."""
        return self._said[-most:]

    def send_signal(self, number: int) -> None:
        """Send a signal to the run's process."""
        with suppress(Exception):  # the actor may be lost, and what Ray raises then is of many kinds
            self._room.interrupt.remote(number)

    def end(self) -> None:
        """Kill the actor, and the run's process with it."""
        if not self._head.gone:
            with suppress(Exception):  # it may be dead
                imported_ray().kill(self._room, no_restart=True)

    def _after(self, seconds: float) -> int | None:
        ray = imported_ray()
        if self.returncode is None and ray.wait([self._made], timeout=seconds)[0]:
            try:
                self.returncode, self._said = ray.get(self._made)
            except ray.exceptions.RayTaskError as error:
                self.returncode, self._said = 1, str(error.cause)
            except ray.exceptions.RayError as error:
                self.returncode, self._said = LOST, f"its worker on Ray was lost {TRIES + 1} times: {error}"
        return self.returncode


@contextmanager
def on_ray(address: str) -> Iterator[TrialPlace]:
    """Connect to a cluster for the duration of the block; a run takes one of its processors.

    Raises:
        MissingExtra: Ray is not installed.
        InputError: there is no cluster, it does not answer, or it has no processor.
    """
    facts, bundle = look(address, "--ray"), {"CPU": 1.0}
    if not facts.places(bundle):
        raise InputError(f"--ray = {address}", "its machines have no processor for a run", "Give them --num-cpus")
    connect(facts.address)
    ray, at = imported_ray(), facts.address
    head = PeerWatch(at, f"the head of Ray at {at} is gone. Runs are kept: the same command continues", PATIENCE, GRACE)
    # Two calls at a time: an interruption is heard while a run is being made.
    room = ray.remote(TrialRoom).options(num_cpus=1, max_restarts=TRIES, max_task_retries=TRIES, max_concurrency=2)

    def start(folder: Path) -> RunProcess:
        return RayProcess(room.remote(os.getcwd()), folder, head)

    try:
        yield TrialPlace(start, facts.places(bundle))
    finally:
        head.close()
        if not head.gone:
            ray.shutdown()
