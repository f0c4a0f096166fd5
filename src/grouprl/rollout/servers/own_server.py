"""A server of the run's own: what its log says, and that it ends with the run."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from grouprl.rollout.servers import guard

READ_LOG, SHOWN_LOG, SHOWN_ERRORS = 400_000, 2000, 5
"""Bytes of a server's log that are looked through for errors, characters that are shown where none is found, errors."""
ERROR = re.compile(r"\b[A-Z]\w*(Error|Exception): .*|\bValue error, [^\[]*")
"""A line that names an error, or what pydantic says below such a line."""


class OwnServer:
    """A process of its own session; what it writes goes to a file that is shown when it fails."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.words, self.environment = list(words), dict(environment)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the server
        self._child: subprocess.Popen[bytes] | None = None
        self._lifeline = -1

    def start(self) -> None:
        """Start the process."""
        theirs, self._lifeline = os.pipe()
        self._child = subprocess.Popen(
            [sys.executable, str(Path(guard.__file__)), str(theirs), *self.words],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self.environment,
            pass_fds=(theirs,),
            start_new_session=True,
        )
        os.close(theirs)

    @property
    def pid(self) -> int:
        """The number of the process; -1 before it is started."""
        return -1 if self._child is None else self._child.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child is not None and self._child.poll() is None

    def how_it_ended(self) -> str:
        """Say how the process ended, with its last output."""
        code = None if self._child is None else self._child.poll()
        how = "runs" if code is None else f"ended by itself with exit code {code}"
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            how = f"was ended by the signal {name}" + (", often for lack of memory" if name == "SIGKILL" else "")
        last = self.last_words()
        return f"the server {self.words[0]} {how}" + (f". Its last output:\n{last}" if last else "")

    def last_words(self) -> str:
        """Return the errors that the process wrote of, without where they came from, or else the end of what it did."""
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), READ_LOG, max(0, size - READ_LOG)).decode(errors="replace").strip()
        lines = [line for line in text.splitlines() if "WARNING" not in line]
        errors = dict.fromkeys(found.group() for found in map(ERROR.search, lines) if found)
        return "\n".join(list(errors)[:SHOWN_ERRORS]) or text[-SHOWN_LOG:]

    def end(self) -> None:
        """End the process and everything it started."""
        if self._child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._child = None
        os.close(self._lifeline)
