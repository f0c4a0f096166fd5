"""A learner on a node of the cluster: an actor starts its process, reads from it and ends it, as the group asks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

from grouprl.orchestrator.on_ray.ray_host import own_address, own_cluster
from grouprl.processes import run_with_parent
from grouprl.processes.child_process import ChildProcess
from grouprl.processes.current_ranks import LEARNER

MODULE = "grouprl"
LAST_WORDS = 1.0
"""Seconds that a process's last output may take to arrive after it has ended."""
LEAVING = 5.0
"""Seconds that a process may take to end by itself once its run is over."""


@dataclass(frozen=True)
class LearnerHello:
    """The setting that a learner is started with: the seconds without a message after which it ends by itself."""

    lease: float


@dataclass(frozen=True)
class LearnerPlace:
    """The place of a learner: its machine, the address of its node, and a free port of that node."""

    machine: str
    address: str
    port: int


@dataclass(frozen=True)
class LearnerState:
    """The output of a learner's process since the last poll, and its exit code once it has ended."""

    out: bytes
    err: bytes
    code: int | None


@dataclass
class _PipeText:
    """The output of a process, read from its pipes."""

    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    news: threading.Condition = field(default_factory=threading.Condition)

    def take(self) -> tuple[bytes, bytes]:
        with self.news:
            found = bytes(self.out), bytes(self.err)
            self.out.clear()
            self.err.clear()
        return found

    def read(self, pipe: IO[bytes], into: bytearray) -> None:
        while piece := os.read(pipe.fileno(), 1 << 16):
            with self.news:
                into += piece
                self.news.notify_all()


class LearnerRoom:
    """The actor that holds the process of one learner and its output.

    The process ends with the actor, and when no message has arrived for `lease` seconds: its launcher may have been
    cut off and may start another learner elsewhere.
    """

    def __init__(self, told: LearnerHello) -> None:
        self._lease, self._asked = told.lease, time.monotonic()
        self._process: ChildProcess | None = None
        self._heard, self._readers = _PipeText(), list[threading.Thread]()

    def place(self) -> LearnerPlace:
        """Return the place of this learner."""
        self._asked = time.monotonic()
        with socket.socket() as found:
            found.bind(("", 0))
            return LearnerPlace(socket.gethostname(), own_address(), found.getsockname()[1])

    def begin(self, arguments: Sequence[str], variables: Mapping[str, str]) -> int:
        """Start `grouprl` with these arguments and variables; return the id of its process."""
        self._asked = time.monotonic()
        assert self._process is None, "a learner is started once"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        command = (sys.executable, "-m", MODULE, *arguments)
        environment = {**kept, **variables, LEARNER: own_cluster()}
        pipe = subprocess.PIPE
        self._process = ChildProcess(run_with_parent.main, *command, output=pipe, errors=pipe, environment=environment)
        for source, into in ((self._process.stdout, self._heard.out), (self._process.stderr, self._heard.err)):
            self._readers.append(threading.Thread(target=self._heard.read, args=(source, into), daemon=True))
            self._readers[-1].start()
        threading.Thread(
            target=self._expire, name="lease", daemon=True
        ).start()  # not before: others may be placed late
        return self._process.pid

    def poll(self, seconds: float) -> LearnerState:
        """Return the process's output, after waiting at most `seconds` for some, and its exit code if it has ended."""
        self._asked = time.monotonic()
        assert self._process is not None
        with self._heard.news:
            if not (self._heard.out or self._heard.err or self._process.poll() is not None):
                self._heard.news.wait(seconds)
        code = self._process.poll()
        if code is not None:
            for reader in self._readers:
                reader.join(LAST_WORDS)
        return LearnerState(*self._heard.take(), code)

    def signal(self, number: int) -> None:
        """Send the process a signal, if it still runs."""
        self._asked = time.monotonic()
        if self._process is not None:
            self._process.send_signal(number)

    def end(self, seconds: float) -> None:
        """End the process: it has `seconds` to end by itself, and is then killed by SIGKILL."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
            self._process.end()

    def _expire(self) -> None:
        while (left := self._asked + self._lease - time.monotonic()) > 0:
            time.sleep(left)
        assert self._process is not None
        self._process.end()
