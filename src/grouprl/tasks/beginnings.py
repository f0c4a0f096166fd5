"""First observations of episodes that run foreign code, computed in a separate process, which may hang or end."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, ClassVar

from grouprl.core.errors import RunError
from grouprl.envs.environment_pool_worker import prepare, serve
from grouprl.envs.environment_pool_workers import WorkerStage
from grouprl.processes.fork_server import ForkServer, supported
from grouprl.processes.parcel import CannotSend, pack
from grouprl.processes.worker_process import START_SECONDS, WorkerSpec
from grouprl.records.examples import Example
from grouprl.rewards.contract import Failure

if TYPE_CHECKING:
    from grouprl.tasks.task import Task

MEMORY_GB = 4.0
MEMORY = int(MEMORY_GB * 2**30)


class NoTask:
    """A stand-in for a task in the fork server, which imports this package's part of a worker and no task."""

    def environment(self) -> None:
        """Return None, because there is no environment."""


class Beginnings:
    """The first observations of a task, as texts. An observation is '' if its environment hangs for longer than
    `seconds`, raises, or ends its process.
    """

    _known: ClassVar[dict[int, Beginnings | None]] = {}
    _server: ClassVar[tuple[int, ForkServer] | None] = None
    _lock = threading.RLock()

    def __init__(self, task: Task, seconds: float) -> None:
        """Prepare the process of a task, which is started when needed.

        Raises:
            CannotSend: the task cannot be found or pickled for another process.
        """
        self._numbers, self._silent = itertools.count(), set[str]()
        self._stage = WorkerStage(task, 1, timeout=seconds, memory_gb=MEMORY_GB, server=self._copied())

    @classmethod
    def of(cls, task: Task, seconds: float) -> Beginnings | None:
        """Return the object for a task, always the same one; None if the task cannot be sent to another process."""
        with cls._lock:
            if id(task) not in cls._known:
                try:
                    cls._known[id(task)] = cls(task, seconds) if os.name == "posix" else None
                except CannotSend:
                    cls._known[id(task)] = None
                weakref.finalize(task, cls._forget, id(task))
            return cls._known[id(task)]

    @classmethod
    def _forget(cls, key: int) -> None:
        if (found := cls._known.pop(key, None)) is not None:
            found._stage.close()

    @classmethod
    def _copied(cls) -> ForkServer | None:
        """Return the fork server for the processes of all tasks, started once."""
        if not supported():
            return None
        if cls._server is None or cls._server[0] != os.getpid() or cls._server[1].state == "useless":
            spec = WorkerSpec(serve, (pack(NoTask(), "task"), 0.0), MEMORY)
            server = ForkServer(spec, prepare, START_SECONDS)
            cls._server = os.getpid(), server
            atexit.register(server.close)
        server = cls._server[1]
        while server.state == "importing":
            time.sleep(0.005)
        return server

    def text(self, example: Example) -> str:
        """Return the first observation of an example; an example that hung or ended its process is not tried again."""
        with self._lock:
            if example.id in self._silent:
                return ""
            try:
                number = next(self._numbers)
                (found,) = self._stage.call("reset", [(number, (example, example.columns["seed"]))])
                if isinstance(found, Failure) and found.lost:
                    self._silent.add(example.id)
                text = getattr(found, "text", "")
                return text if isinstance(text, str) else ""
            except RunError:  # too many are lost; a run that plays them reports it
                return ""
            finally:
                self._stage.clear()
