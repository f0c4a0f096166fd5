"""One worker process as its parent sees it: pipes that never block, its last output, and how it is ended."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, get_args

from grouprl.records.scores import Status
from grouprl.rewards import worker
from grouprl.rewards.validation import Verdict
from grouprl.rewards.worker import LENGTH

MAX_OUTPUT = 4000
"""Bytes of a worker's last output that are kept."""
LONGEST_REPLY = 1 << 20
"""Bytes of a line unless set otherwise; a longer one is not a reply."""
STACK_SECONDS = 0.5
"""How long a worker that hangs may take to say where."""
FAREWELL_SECONDS = 0.5
"""How long an idle worker may take to end by itself."""
NO_VARIABLES: Mapping[str, str] = {}
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Child(Protocol):
    """A process that was begun, as `subprocess.Popen` has it."""

    pid: int

    @property
    def returncode(self) -> int | None:
        """Its exit code, None while it is not known to have ended."""
        ...

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code once it has ended. Raises subprocess.TimeoutExpired."""
        ...


Begin = Callable[[Sequence[int]], tuple[Child, io.FileIO]]
"""Begins a worker with its ends of the pipes for requests, replies and lifeline; returns it and what it prints."""


class BadReply(Exception):
    """A worker sent something that is not a reply."""


class WorkerProcess:
    """A started worker, in a session of its own, so that its children can be ended with it."""

    def __init__(
        self,
        hello: bytes,
        script: str = worker.__file__,
        longest_reply: int = LONGEST_REPLY,
        variables: Mapping[str, str] = NO_VARIABLES,
        begin: Begin | None = None,
    ) -> None:
        """Start it; `variables` are set in its environment, whatever this process has.

        `begin` starts it another way than as a script. Raises OSError where it cannot be started.
        """
        self.longest_reply = longest_reply
        theirs, here = _pipes()
        try:
            self.child, self.output = begin(theirs) if begin else _begin(script, theirs, variables)
        except OSError:
            for each in here:
                os.close(each)
            raise
        finally:
            for each in theirs:
                os.close(each)
        self._lifeline = here[2]
        self.requests, self.replies = io.FileIO(here[0], "w"), io.FileIO(here[1])
        for ours in (self.requests, self.replies, self.output):
            os.set_blocking(ours.fileno(), False)
        self.printed = b""
        self._unsent, self._line = bytearray(), bytearray()
        self.send(hello)

    @property
    def sending(self) -> bool:
        """Whether a part of what was sent is still here."""
        return bool(self._unsent)

    def send(self, payload: bytes) -> None:
        """Send a pickled message; what the pipe does not take at once waits for `flush`."""
        self._unsent += LENGTH.pack(len(payload)) + payload
        self.flush()

    def flush(self) -> None:
        """Send on what waits, as far as the pipe takes it."""
        with contextlib.suppress(BrokenPipeError):  # a worker that has ended is noticed by `ended`
            while self._unsent and (count := self.requests.write(self._unsent)):
                del self._unsent[:count]

    def read_replies(self) -> Iterator[list[object]]:
        """Yield the replies that have come, the good ones before a bad one too.

        Raises:
            BadReply: what came is no JSON list, or has no end.
        """
        self._line += _available(self.replies)
        *lines, self._line = self._line.split(b"\n")
        yield from map(_parse, lines)
        if len(self._line) > self.longest_reply:
            raise BadReply(f"a line of more than {self.longest_reply} bytes")

    def read_output(self) -> None:
        """Keep the end of what the worker printed since the last time."""
        self.printed = (self.printed + _available(self.output))[-MAX_OUTPUT:]

    def ended(self) -> bool:
        """Whether the process has ended; what it wrote before may still have to be read."""
        return self.child.poll() is not None

    def how_it_ended(self) -> str:
        """Return in words how the ended process ended."""
        code = self.child.wait()
        if code >= 0:
            return f"ended by itself with exit code {code}"
        return f"was ended by the signal {signal.Signals(-code).name}"

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
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        for ours in (self.requests, self.replies, self.output):
            ours.close()
        os.close(self._lifeline)

    def hang_up(self) -> None:
        """Send nothing more: an idle process ends by itself, so that what it registered for its exit runs."""
        self.requests.close()

    def dismiss(self) -> None:
        """Wait a moment for a process that was hung up on, then `kill` what is left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(FAREWELL_SECONDS)
        self.kill()


def _pipes() -> tuple[list[int], list[int]]:
    """Return the worker's ends of its pipes and this process's: requests, replies, lifeline."""
    request, requests = os.pipe()
    replies, reply = os.pipe()
    lifeline, end = os.pipe()
    return [request, reply, lifeline], [requests, replies, end]


def _begin(script: str, files: Sequence[int], variables: Mapping[str, str]) -> tuple[Child, io.FileIO]:
    child = subprocess.Popen(
        [sys.executable, "-u", str(Path(script)), *map(str, files)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        pass_fds=files,
        start_new_session=True,
        env=dict.fromkeys(ONE_THREAD, "1") | {"PYTHONHASHSEED": "0"} | os.environ | dict(variables),
    )
    assert isinstance(child.stdout, io.FileIO)
    return child, child.stdout


def hello_frame(parcel: dict[str, object], memory: int, examples: Sequence[object], seconds: float = 0.0) -> bytes:
    """Return the first message to a worker: plain data, as it is read before any module can be found.

    `seconds` is the time of a call, for workers that watch it themselves.
    """
    package = str(Path(__file__).resolve().parent.parent)
    here = os.getcwd()
    path = [here if entry == "" else entry for entry in sys.path]
    return pickle.dumps(
        {
            "path": path if here in path else [*path, here],
            "package": package,
            "memory": memory,
            "parcel": parcel,
            "examples": examples,
            "seconds": seconds,
        }
    )


def read_verdict(values: list[Any]) -> tuple[int, Verdict]:
    """Return the place and the verdict that a reply states.

    Raises:
        BadReply: it is not one.
    """
    if len(values) != 8:
        raise BadReply(repr(values)[:60])
    place, status, reward, components, correct, what, trace, graded = values
    sound = (
        isinstance(place, int)
        and status in get_args(Status)
        and isinstance(reward, float)
        and math.isfinite(reward) == (status == "ok")
        and isinstance(components, dict)
        and all(isinstance(number, float) for number in components.values())
        and isinstance(correct, bool)
        and isinstance(what, str)
        and isinstance(trace, str)
        and isinstance(graded, bool)
    )
    if not sound:
        raise BadReply(repr(values)[:60])
    return place, Verdict(status, reward, components, correct, what, trace, graded=graded)


def _available(source: io.FileIO) -> bytes:
    found = bytearray()
    while len(found) < LONGEST_REPLY and (piece := source.read(1 << 16)):
        found += piece
    return bytes(found)


def _parse(line: bytes | bytearray) -> list[Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise BadReply(f"{line[:60]!r}") from error
    if not isinstance(found, list) or not found:
        raise BadReply(f"{line[:60]!r}")
    return found
