"""Workers that start within milliseconds, as forks of a process that has already imported what they need."""

from __future__ import annotations

import functools
import io
import math
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from itertools import chain

from grouprl.processes import fork_server_main
from grouprl.processes.child_process import Child, ChildProcess, end_group
from grouprl.processes.fork_server_main import NUMBER, READY
from grouprl.processes.frames import framed
from grouprl.processes.worker_process import DEFAULTS, START_SECONDS, WorkerProcess, WorkerSpec

ANSWER_SECONDS = 10.0
"""Seconds that a ready server may take to start a worker."""
REPORT_SECONDS = 1.0
"""Seconds to wait for the exit code of a worker that has ended."""
KILLED = -9


@functools.cache
def supported() -> bool:
    """Return whether this system can report the end of a process that is not a child."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return os.path.isdir("/proc/self/task")


class ForkServer:
    """The process that workers are forked from. It starts at once and can be used once `state` is 'ready'. If it may
    not be forked (see `grouprl.processes.fork_server_main`), `state` becomes 'useless'.
    """

    def __init__(self, spec: WorkerSpec, prepare: Callable[..., object], seconds: float) -> None:
        """Start the process, which calls `prepare` with the setup of `spec` and may take `seconds` for it."""
        self._deadline = time.monotonic() + seconds
        self._control, control = socket.socketpair()
        with control:
            number = control.fileno()
            environment = DEFAULTS | os.environ
            silent = subprocess.DEVNULL
            self._child = ChildProcess(
                fork_server_main.main, number, files=(number,), errors=silent, environment=environment
            )
        # Sent in `_look`, piece by piece: a server does not read while it imports, and nobody must wait for it.
        self._unsent = bytearray(framed(spec.hello_to(prepare)))
        self._control.setblocking(False)
        self._state = "importing"

    @property
    def state(self) -> str:
        """'importing', 'ready' or 'useless'."""
        if self._state == "importing":
            self._look()
        return self._state

    def _look(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._control.send(self._unsent)]
            said = self._control.recv(1)
        except BlockingIOError:
            if time.monotonic() > self._deadline:
                self.close()
            return
        except OSError:
            said = b""
        if said != READY:
            self.close()
            return
        self._state = "ready"
        self._control.settimeout(ANSWER_SECONDS)

    def begin(self, files: Sequence[int]) -> tuple[Child, io.FileIO]:
        """Start a worker with its ends of the pipes `files` (requests, replies); return the worker and its output.

        Raises:
            OSError: it cannot be started.
        """
        (lifeline, ours), (output, printed), (codes, code) = _pipes(3)
        try:
            socket.send_fds(self._control, [READY], [lifeline, *files, printed, code])
            answer = self._control.recv(NUMBER.size)
            if len(answer) != NUMBER.size:
                raise OSError("The process that starts workers has ended")
            process = int(NUMBER.unpack(answer)[0])
            if process < 0:
                raise OSError(-process, os.strerror(-process))
            return ForkedChild(process, codes, ours), io.FileIO(output)
        except OSError:
            for each in (ours, output, codes):
                os.close(each)
            raise
        finally:  # the worker's ends: as long as one is open here, too, its output and its code have no end
            for each in (lifeline, printed, code):
                os.close(each)

    def close(self) -> None:
        """End the server; may be called twice. Its workers keep running, but their exit codes are lost."""
        if self._state != "useless":
            self._state = "useless"
            self._control.close()
            self._child.end()


class WorkerStarter:
    """Starts workers: as forks of a server if one is ready, otherwise each as a new Python interpreter.

    A `server` that is passed in is not closed with this object. Without one, `prepare_copies` starts one.
    """

    def __init__(self, spec: WorkerSpec, prepare: Callable[..., object], server: ForkServer | None = None) -> None:
        self.spec, self._prepare, self._given = spec, prepare, server
        self.own: ForkServer | None = None

    def prepare_copies(self) -> str:
        """Start a fork server if needed, and return its state: 'importing', 'ready' or 'useless'."""
        if self._given is None and self.own is None and supported():
            self.own = ForkServer(self.spec, self._prepare, START_SECONDS)
        server = self._given or self.own
        return "useless" if server is None else server.state

    def start(self) -> WorkerProcess:
        """Start a worker. Raises OSError if it cannot be started."""
        server = self._given or self.own
        if server is not None and server.state == "ready":
            try:
                return WorkerProcess(self.spec, server.begin)
            except OSError:
                server.close()
        return WorkerProcess(self.spec)

    def stop_copying(self) -> None:
        """Stop forking from this object's own server, because a worker forked from it failed."""
        if self.own is not None:
            self.own.close()

    def close(self) -> None:
        """End this object's own server; may be called twice. A later `prepare_copies` starts another."""
        self.stop_copying()
        self.own = None


class ForkedChild:
    """A worker started by the fork server: it is handled like a child, although the system does not count it as one."""

    def __init__(self, pid: int, codes: int, lifeline: int) -> None:
        """Watch process `pid`; its exit code will arrive through the file `codes`, and it ends when `lifeline` is
        closed.

        Raises:
            OSError: the process has already ended.
        """
        self.pid, self._codes, self._lifeline, self._end = pid, codes, lifeline, os.pidfd_open(pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        if self.returncode is None and _speaks(self._end, 0.0):
            self._note_end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has arrived. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            if not _speaks(self._end, math.inf if timeout is None else timeout):
                raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0.0)
            self._note_end()
        assert self.returncode is not None
        return self.returncode

    def end(self) -> None:
        """Kill the process and its children at once; must be called only once."""
        end_group(self)
        os.close(self._lifeline)

    def _note_end(self) -> None:
        # The server reports a code just after the end; one that has itself died reports none.
        found = os.read(self._codes, NUMBER.size) if _speaks(self._codes, REPORT_SECONDS) else b""
        self.returncode = NUMBER.unpack(found)[0] if len(found) == NUMBER.size else KILLED
        os.close(self._codes)
        os.close(self._end)


def _pipes(count: int) -> list[tuple[int, int]]:
    """Return so many new pipes, or raise OSError and leave none."""
    made: list[tuple[int, int]] = []
    try:
        made.extend(os.pipe() for _ in range(count))
    except OSError:
        for each in chain.from_iterable(made):
            os.close(each)
        raise
    return made


def _speaks(file: int, seconds: float) -> bool:
    """Return whether there is something to read from `file` within `seconds`."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(None if seconds == math.inf else 1000 * seconds))
