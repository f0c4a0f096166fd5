"""The parent's view of a worker process: pipes that never block, its last output, and its end."""

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
"""Bytes kept of a worker's last output."""
LONGEST_REPLY = 1 << 20
"""Maximum number of bytes in a line, unless set otherwise; a longer line is not a reply."""
START_SECONDS = 120.0
"""Seconds that a worker may take to import its function."""
STACK_SECONDS = 0.5
"""Seconds that a hanging worker may take to print its stack."""
FAREWELL_SECONDS = 0.5
"""Seconds that an idle worker may take to end by itself."""
LONGEST_WAIT = 0.1
"""Seconds until a worker is noticed that died without closing its pipes, because a child of it holds them."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
DEFAULTS: Mapping[str, str] = dict.fromkeys(ONE_THREAD, "1") | {"PYTHONHASHSEED": "0"}
"""Environment variables that a worker gets if this process does not set them."""

Serve = Callable[[Any, Iterator[Any], Replies], None]
"""A function that answers calls: its arguments are the worker's setup, the calls, and a function that replies."""
Begin = Callable[[Sequence[int]], tuple[Child, io.FileIO]]
"""A function that starts a worker with its ends of the pipes (requests, replies), and returns the worker and its
output.
"""


@dataclass(frozen=True)
class WorkerSpec:
    """The function and the limits of one kind of worker."""

    serve: Serve
    """A module-level function, which the worker imports."""
    given: object
    """The first argument of the function, as plain data (see `pack`)."""
    memory: int
    """Bytes of private memory that a worker may use."""
    longest_reply: int = LONGEST_REPLY
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that override those of this process."""
    path: Sequence[str] = field(default_factory=search_path)
    """The worker's search path for modules: that of this process when the specification was made."""

    @cached_property
    def hello(self) -> bytes:
        """The first message to a worker."""
        return self.hello_to(self.serve)

    def hello_to(self, function: Callable[..., object]) -> bytes:
        """Return a message that makes a process call `function` with the setup, which is unpickled with the limits in
        force.
        """
        return pickle.dumps((list(self.path), self.memory, pickle.dumps((function, self.given))))

    def begin(self, files: Sequence[int]) -> tuple[Child, io.FileIO]:
        """Start a worker as a new Python interpreter. Raises OSError if it cannot be started."""
        environment = {**DEFAULTS, **os.environ, **self.variables}
        pipe, words = subprocess.PIPE, (*files, self.serve.__module__)
        child = ChildProcess(worker_main.main, *words, files=files, output=pipe, environment=environment)
        assert isinstance(child.stdout, io.FileIO)
        return child, child.stdout


class WorkerProcess:
    """A started worker, in a session of its own, so that its children can be ended with it."""

    def __init__(self, spec: WorkerSpec, begin: Begin | None = None) -> None:
        """Start the worker, by `begin` if given, otherwise by `spec`. Raises OSError if it cannot be started."""
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
        """Send a pickled message; bytes that the pipe does not accept at once wait for `flush`."""
        self._unsent += framed(payload)
        self.flush()

    def flush(self) -> None:
        """Send waiting bytes, as many as the pipe accepts."""
        with contextlib.suppress(BrokenPipeError):  # `ended` notices a worker that has ended
            while self._unsent and (count := self.requests.write(self._unsent)):
                del self._unsent[:count]

    def hear(self) -> Iterator[list[Any]]:
        """Send waiting bytes, keep the worker's output, and yield the replies that have arrived.

        Raises:
            BadReply: a line is not a JSON list, or too long; the replies before it have been yielded.
        """
        self.flush()
        self.read_output()
        self._line += _available(self.replies)
        *lines, self._line = self._line.split(b"\n")
        yield from map(parse_reply, lines)
        if len(self._line) > self.longest_reply:
            raise BadReply(f"a line of more than {self.longest_reply} bytes")

    def next_reply(self, seconds: float, beginning: Sequence[object] = ()) -> list[Any] | None:
        """Return the next reply that starts with `beginning`; None if the worker has ended or `seconds` have passed.

        Raises:
            BadReply: a different message arrived.
        """
        deadline = time.monotonic() + seconds
        while True:
            ended = self.ended()  # checked before reading, so that replies written before the end are still read
            for reply in self.hear():
                if reply[: len(beginning)] == list(beginning):
                    return reply
            left = deadline - time.monotonic()
            if ended or left <= 0:
                return None
            wait_for_any([self], min(left, LONGEST_WAIT))

    def read_output(self) -> None:
        """Read the worker's new output, and keep its end."""
        self.printed = (self.printed + _available(self.output))[-MAX_OUTPUT:]

    def last_output(self) -> str:
        """Return the end of the worker's output."""
        return self.printed.decode(errors="replace").strip()

    def waits(self) -> Iterator[tuple[io.FileIO, int]]:
        """Yield the files to be polled, each with the event to wait for."""
        yield self.replies, select.POLLIN
        yield self.output, select.POLLIN
        if self._unsent:
            yield self.requests, select.POLLOUT

    def ended(self) -> bool:
        """Return whether the process has ended; earlier replies may still have to be read."""
        return self.child.poll() is not None

    def how_it_ended(self) -> str:
        """Describe how the process ended."""
        return how_it_ended(self.child.wait())

    def say_where(self) -> None:
        """Have a hanging worker print its stack, and read it."""
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
        """Close the worker's input: an idle worker then ends by itself, so that its exit handlers run."""
        self.requests.close()

    def dismiss(self) -> None:
        """Wait briefly for a worker whose input was closed, then kill it if it is still running."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(FAREWELL_SECONDS)
        self.kill()


def wait_for_any(workers: Iterable[WorkerProcess], seconds: float) -> list[WorkerProcess]:
    """Return the workers that have sent something or can accept more bytes, as soon as there is one; wait at most
    `seconds`.
    """
    poll, owners = select.poll(), dict[int, WorkerProcess]()
    for worker in workers:
        for file, event in worker.waits():
            poll.register(file, event)
            owners[file.fileno()] = worker
    return list(dict.fromkeys(owners[number] for number, _ in poll.poll(1000 * max(0.0, seconds))))


def end_workers(workers: Iterable[tuple[WorkerProcess, bool]]) -> None:
    """End workers, all at the same time: idle ones end by themselves, the others are killed at once."""
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
    # Bounded, so that a worker that prints without pause cannot keep its reader here.
    while len(found) < PIECE and (piece := source.read(1 << 16)):
        found += piece
    return bytes(found)
