"""The sampler's process as the trainer sees it: started, sent requests, listened to, and ended with the run."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, TypeAlias

from grouprl.core.errors import InputError, RunError
from grouprl.orchestrator.asynchronous import process_main as child
from grouprl.records.requests import RolloutRequest

LOOK_SECONDS = 0.5
"""How often a silent sampler is checked."""
SPEAK_SECONDS = 60.0
"""After so many seconds of waiting the run says what it waits for, and again each time they have doubled."""
SHOWN_OUTPUT = 2000
"""Bytes of a dead sampler's last output that are shown."""
Told: TypeAlias = tuple[str, Any]
"""A message of the sampler: its kind, which says what the content is, and the content."""
REMEDY = "What is on disk is intact: continue with --resume"


class SamplerProcess:
    """A process of its own session. `hello` tells it everything; `fd` is the memory of the weights.

    `listen` hears every message but failures, which are raised.
    """

    def __init__(self, hello: dict[str, object], fd: int) -> None:
        self._wire, theirs = Pipe()
        lifeline, self._lifeline = os.pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the process
        given = (theirs.fileno(), lifeline)
        self._child = subprocess.Popen(
            [sys.executable, "-u", str(Path(child.__file__)), *map(str, given)],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            pass_fds=(*given, fd),
            start_new_session=True,
        )
        theirs.close()
        os.close(lifeline)
        here = os.getcwd()
        self._send([here if entry == "" else entry for entry in sys.path])
        self._send({"weights": fd, **hello})

    def request(self, number: int, requests: Sequence[RolloutRequest]) -> None:
        """Request the completions of a unit of prompts."""
        self._send((number, list(requests)))

    def receive(self, waiting_for: str, say: Callable[[str], None]) -> Told:
        """Return the next message (kind, content); blocks, and says from time to time what for.

        Raises:
            RunError: the process ended, or could not go on.
            InputError: what was requested cannot be sampled.
        """
        start, speak = time.monotonic(), SPEAK_SECONDS
        while not self._wire.poll(LOOK_SECONDS):
            if self._child.poll() is not None and not self._wire.poll(0):
                raise self._dead()
            if time.monotonic() - start > speak:
                say(f"waiting for the sampler for {speak:.0f} seconds: {waiting_for}")
                speak *= 2
        return self._next()

    def received(self) -> list[tuple[str, object]]:
        """Return the messages that have come already."""
        found = []
        with contextlib.suppress(OSError):  # the end of the process is noticed when it is waited for
            while self._wire.poll(0):
                found.append(self._next())
        return found

    def close(self) -> None:
        """End the process and everything it started; nothing on disk depends on it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._wire.close()
        self._output.close()
        os.close(self._lifeline)

    def _next(self) -> tuple[str, object]:
        try:
            kind, content = pickle.loads(self._wire.recv_bytes())
        except (EOFError, ConnectionError):
            self._child.wait(LOOK_SECONDS * 10)
            raise self._dead() from None
        if kind == "refused":
            raise InputError(*content)
        if kind == "failed":
            raise RunError(content)
        return kind, content

    def _send(self, message: object) -> None:
        try:
            self._wire.send_bytes(pickle.dumps(message))
        except (BrokenPipeError, ConnectionError):
            self._child.wait(LOOK_SECONDS * 10)
            raise self._dead() from None

    def _dead(self) -> RunError:
        code = self._child.returncode
        how = f"ended by itself with exit code {code}"
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            how = f"was ended by the signal {name}" + (", often for lack of memory" if name == "SIGKILL" else "")
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - SHOWN_OUTPUT))
        last = self._output.read().decode(errors="replace").strip()
        return RunError(f"the sampler's process {how}. {REMEDY}" + (f". Its last output:\n{last}" if last else ""))
