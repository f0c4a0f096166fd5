"""The sampler's process as seen by the trainer: it is started, sent requests, read from, and ended with the run."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import time
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from typing import Any, TypeAlias

from grouprl.core.errors import InputError, RunError
from grouprl.orchestrator.asynchronous import sampler_main
from grouprl.processes.child_process import LoggedProcess, how_it_ended
from grouprl.records.requests import RolloutRequest

LOOK_SECONDS = 0.5
"""Seconds between two checks of a silent sampler."""
SPEAK_SECONDS = 60.0
"""Seconds of waiting after which the run reports what it waits for; the interval doubles each time."""
ENDING_SECONDS = 5.0
"""Seconds that a sampler may take to end after its connection is closed."""
SHOWN_OUTPUT = 2000
"""Bytes of a dead sampler's last output that are shown."""
Told: TypeAlias = tuple[str, Any]
"""A message of the sampler: its kind, which determines the content, and the content."""
REMEDY = "The files of the run are intact: continue with --resume"


class SamplerProcess:
    """A sampler process in its own session; `hello` is its setup, and `fd` is the descriptor of the weights' memory."""

    def __init__(self, hello: dict[str, object], fd: int) -> None:
        self._wire, theirs = Pipe()
        wire = theirs.fileno()
        self._child = LoggedProcess(sampler_main.main, wire, files=(wire, fd))
        theirs.close()
        try:
            self._send({"weights": fd, **hello})
        except BaseException:
            self.close()
            raise

    def request(self, number: int, requests: Sequence[RolloutRequest]) -> None:
        """Request the completions of one unit of prompts."""
        self._send((number, list(requests)))

    def receive(self, waiting_for: str, say: Callable[[str], None]) -> Told:
        """Return the next message (kind, content); wait for it, and report from time to time what is being waited for.

        Raises:
            RunError: the process ended or failed.
            InputError: the requests cannot be sampled.
        """
        start, speak = time.monotonic(), SPEAK_SECONDS
        while not self._wire.poll(LOOK_SECONDS):
            # A process that has ended may have sent its last words between the two looks: they name the cause.
            if self._child.poll() is not None and not self._wire.poll(0):
                raise self._dead()
            if time.monotonic() - start > speak:
                say(f"waiting for the sampler for {speak:.0f} seconds: {waiting_for}")
                speak *= 2
        return self._next()

    def received(self) -> list[tuple[str, object]]:
        """Return the messages that have already arrived."""
        found = []
        with contextlib.suppress(OSError):  # the end of the process is noticed when it is waited for
            while self._wire.poll(0):
                found.append(self._next())
        return found

    def close(self) -> None:
        """End the process and everything it started; no file depends on it."""
        self._child.end()
        self._wire.close()

    def _next(self) -> tuple[str, object]:
        try:
            kind, content = pickle.loads(self._wire.recv_bytes())
        except (EOFError, ConnectionError):
            raise self._dead() from None
        if kind == "refused":
            raise InputError(*content)
        if kind == "failed":
            raise RunError(content)
        return kind, content

    def _send(self, message: object) -> None:
        try:
            self._wire.send_bytes(pickle.dumps(message))
        except ConnectionError:
            raise self._dead() from None

    def _dead(self) -> RunError:
        # Its files are closed before it is gone, and it may take long to give back the memory of a large model.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(ENDING_SECONDS)
        last, code = self._child.last_output(SHOWN_OUTPUT), self._child.returncode
        how = "closed its connection but did not end" if code is None else how_it_ended(code)
        return RunError(f"the sampler's process {how}. {REMEDY}" + (f". Its last output:\n{last}" if last else ""))
