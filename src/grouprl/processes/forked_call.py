"""Calls in forks of one process that has imported the functions, and nothing else of this one."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import threading

from grouprl.core.errors import RunError
from grouprl.processes.forked_call_main import ForkedCall, serve
from grouprl.processes.frames import BadReply
from grouprl.processes.worker_process import START_SECONDS, WorkerProcess, WorkerSpec

MEMORY = 2 << 30
HASH_SEED = {"PYTHONHASHSEED": "0"}
"""Whatever this process has: sets of texts have the same order in every run."""


class ForkingProcess:
    """The process that forks, started when it is first needed, in whichever process asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: WorkerProcess | None = None
        self._owner = 0

    def outcome(self, call: ForkedCall) -> list[object]:
        """Return the outcome of a call, as `grouprl.processes.forked_call_main.answer` says.

        A process that was ended from outside is started anew once.

        Raises:
            RunError: this machine has no process for it.
        """
        frame = pickle.dumps(call)
        with self._lock:
            for _ in range(2):
                try:
                    process = self._started()
                    process.send(frame)
                    return self._reply(process)
                except BadReply as error:
                    self._end()
                    last = error
                except BaseException:  # an interrupt: the reply that is under way belongs to nobody
                    self._end()
                    raise
            raise RunError(f"The process for verifiers keeps ending: {last}")

    def close(self) -> None:
        """End the process, if there is one; the next call starts another."""
        with self._lock:
            self._end()

    def _started(self) -> WorkerProcess:
        if self._process is not None and self._owner == os.getpid():
            return self._process
        try:
            self._process, self._owner = (
                WorkerProcess(WorkerSpec(serve, None, MEMORY, variables=HASH_SEED)),
                os.getpid(),
            )
        except OSError as error:
            raise RunError(f"No process for verifiers can be started: {error}") from error
        self._reply(self._process)
        return self._process

    def _reply(self, process: WorkerProcess) -> list[object]:
        found = process.next_reply(START_SECONDS)  # calls end by their own limits long before
        if found is not None:
            return found
        if process.ended():
            raise BadReply(f"it {process.how_it_ended()}. {process.last_output()[-1000:]}")
        raise RunError(f"The process for verifiers sent nothing within {START_SECONDS:g} s")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            with contextlib.suppress(OSError):
                process.kill()

    def forget(self) -> None:
        """Leave the process to the parent of this fork; a call from here starts another."""
        self._lock, self._process = threading.Lock(), None


SERVER = ForkingProcess()
atexit.register(SERVER.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SERVER.forget)
