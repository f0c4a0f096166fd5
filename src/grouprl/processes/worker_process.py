"""A worker process as its parent sees it: pipes that never block, its last output, and how it is ended."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from grouprl.processes import worker_main
from grouprl.processes.child_process import Child, ChildProcess, how_it_ended, search_path
from grouprl.processes.frames import PIECE, BadReply, Replies, framed, parse_reply

MAX_OUTPUT = 4000
"""Bytes of a worker's last output that are kept."""
LONGEST_REPLY = 1 << 20
"""Bytes of a line unless set otherwise; a longer one is not a reply."""
START_SECONDS = 120.0
"""Seconds that a worker may take to import what it serves."""
STACK_SECONDS = 0.5
"""Seconds that a worker which hangs may take to print its stack."""
FAREWELL_SECONDS = 0.5
"""Seconds that an idle worker may take to end by itself."""
LONGEST_WAIT = 0.1
"""Seconds until a worker is noticed that died without closing its pipes: a child of it holds them."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
DEFAULTS: Mapping[str, str] = dict.fromkeys(ONE_THREAD, "1") | {"PYTHONHASHSEED": "0"}
"""Variables of a worker's environment that this process does not set itself."""

Serve = Callable[[Any, Iterator[Any], Replies], None]
"""Answers the calls that come: it gets what it was given, the calls, and how to reply."""
Begin = Callable[[Sequence[int]], tuple[Child, io.FileIO]]
"""Begins a worker with its ends of the pipes for requests and replies; returns it and what it prints."""


@dataclass(frozen=True)
class WorkerSpec:
    """The function and the limits of workers of one kind."""

    serve: Serve
    """A function of a module, which the worker imports."""
    given: object
    """The first argument of the function, as plain data: see `pack`."""
    memory: int
    """Bytes of a worker's own memory."""
    longest_reply: int = LONGEST_REPLY
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of their environment that come before those of this process."""
    path: Sequence[str] = field(default_factory=search_path)
    """Their folders of modules: those of this process when the specification was made."""

    @cached_property
    def hello(self) -> bytes:
        """The first message to a worker."""
        return self.hello_to(self.serve)

    def hello_to(self, function: Callable[..., object]) -> bytes:
        """Return the message that has a process call `function` with what is given: that is read behind the limits."""
        return pickle.dumps((list(self.path), self.memory, pickle.dumps((function, self.given))))

    def begin(self, files: Sequence[int]) -> tuple[Child, io.FileIO]:
        """Begin a worker as a Python of its own. Raises OSError where it cannot be started."""
        environment = {**DEFAULTS, **os.environ, **self.variables}
        pipe, words = subprocess.PIPE, (*files, self.serve.__module__)
        child = ChildProcess(worker_main.main, *words, files=files, output=pipe, environment=environment)
        assert isinstance(child.stdout, io.FileIO)
        return child, child.stdout


class WorkerProcess:
    """A started worker, in a session of its own, so that its children can be ended with it."""

    def __init__(self, spec: WorkerSpec, begin: Begin | None = None) -> None:
        """Start it; `begin` does so in another way than `spec` does. Raises OSError where it cannot be started."""
        self.longest_reply = spec.longest_reply
        request, requests = os.pipe()
        replies, reply = os.pipe()
        try:
            self.child, self.output = (begin or spec.begin)((request, reply))
        except OSError:
            os.close(requests)
            os.close(replies)
            raise
        finally:
            os.close(request)
            os.close(reply)
        self.requests, self.replies = io.FileIO(requests, "w"), io.FileIO(replies)
        for ours in (self.requests, self.replies, self.output):
            os.set_blocking(ours.fileno(), False)
        self.printed = b""
        self._unsent, self._line = bytearray(), bytearray()
        self.send(spec.hello)

    def send(self, payload: bytes) -> None:
        """Send a pickled message; what the pipe does not take at once waits for `flush`."""
        self._unsent += framed(payload)
        self.flush()

    def flush(self) -> None:
        """Send on what waits, as far as the pipe takes it."""
        with contextlib.suppress(BrokenPipeError):  # a worker that has ended is noticed by `ended`
            while self._unsent and (count := self.requests.write(self._unsent)):
                del self._unsent[:count]

    def hear(self) -> Iterator[list[Any]]:
        """Send on what waits, keep what the worker printed, and yield the replies that have come.

        Raises:
            BadReply: what came is no JSON list, or has no end; the good ones before it have been yielded.
        """
        self.flush()
        self.read_output()
        self._line += _available(self.replies)
        *lines, self._line = self._line.split(b"\n")
        yield from map(parse_reply, lines)
        if len(self._line) > self.longest_reply:
            raise BadReply(f"a line of more than {self.longest_reply} bytes")

    def next_reply(self, seconds: float, beginning: Sequence[object] = ()) -> list[Any] | None:
        """Return the next reply that begins so; None where the worker has ended, or `seconds` are over.

        Raises:
            BadReply: something else came.
        """
        deadline = time.monotonic() + seconds
        while True:
            ended = self.ended()  # asked first: what it wrote before it ended is still read
            for reply in self.hear():
                if reply[: len(beginning)] == list(beginning):
                    return reply
            left = deadline - time.monotonic()
            if ended or left <= 0:
                return None
            wait_for_any([self], min(left, LONGEST_WAIT))

    def read_output(self) -> None:
        """Keep the end of what the worker printed since the last time."""
        self.printed = (self.printed + _available(self.output))[-MAX_OUTPUT:]

    def last_output(self) -> str:
        """Return what the worker printed last."""
        return self.printed.decode(errors="replace").strip()

    def waits(self) -> Iterator[tuple[io.FileIO, int]]:
        """Yield the files to be polled, each with the event that is waited for."""
        yield self.replies, select.POLLIN
        yield self.output, select.POLLIN
        if self._unsent:
            yield self.requests, select.POLLOUT

    def ended(self) -> bool:
        """Return whether the process has ended; what it wrote before may still have to be read."""
        return self.child.poll() is not None

    def how_it_ended(self) -> str:
        """Return in words how the ended process ended."""
        return how_it_ended(self.child.wait())

    def say_where(self) -> None:
        """Let a worker that hangs print its stack, and read that."""
        self.read_output()
        before = self.printed
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child.pid, signal.SIGUSR1)
        deadline = time.monotonic() + STACK_SECONDS
        while time.monotonic() < deadline and (self.printed == before or b"most recent call first" not in self.printed):
            time.sleep(0.01)
            self.read_output()

    def kill(self) -> None:
        """End the process and its children at once."""
        self.child.end()
        for ours in (self.requests, self.replies, self.output):
            ours.close()

    def hang_up(self) -> None:
        """Send nothing more: an idle process ends by itself, so that what it registered for its exit runs."""
        self.requests.close()

    def dismiss(self) -> None:
        """Wait a moment for a process that was hung up on, then `kill` what is left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(FAREWELL_SECONDS)
        self.kill()


def wait_for_any(workers: Iterable[WorkerProcess], seconds: float) -> list[WorkerProcess]:
    """Return the workers that say something, or can take more of what was sent, as soon as there is one.

    Waits at most `seconds`.
    """
    poll, owners = select.poll(), dict[int, WorkerProcess]()
    for worker in workers:
        for file, event in worker.waits():
            poll.register(file, event)
            owners[file.fileno()] = worker
    return list(dict.fromkeys(owners[number] for number, _ in poll.poll(1000 * max(0.0, seconds))))


def end_workers(workers: Iterable[tuple[WorkerProcess, bool]]) -> None:
    """End workers: those that are idle by themselves, all at the same time, the others at once."""
    given = list(workers)
    for worker, idle in given:
        if idle:
            worker.hang_up()
    for worker, idle in given:
        if idle:
            worker.dismiss()
        else:
            worker.kill()


def _available(source: io.FileIO) -> bytes:
    found = bytearray()
    while len(found) < PIECE and (piece := source.read(1 << 16)):
        found += piece
    return bytes(found)
