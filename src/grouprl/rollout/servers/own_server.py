"""A server that the run started: its log, and its end with the run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from grouprl.processes import run_with_parent
from grouprl.processes.child_process import LoggedProcess, how_it_ended

READ_LOG, SHOWN_LOG, SHOWN_ERRORS = 400_000, 2000, 5
"""Bytes of a server's log that are searched for errors, characters shown if none is found, and most errors shown."""
ERROR = re.compile(r"\b[A-Z]\w*(Error|Exception): .*|\bValue error, [^\[]*")
"""Pattern of a line that names an error, or of pydantic's text below such a line."""


class OwnServer:
    """A process in its own session; its output goes to a file that is shown when it fails."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.words, self.environment = list(words), dict(environment)
        self._child: LoggedProcess | None = None

    def start(self) -> None:
        """Start the process."""
        self._child = LoggedProcess(run_with_parent.main, *self.words, environment=self.environment)

    @property
    def pid(self) -> int:
        """The number of the process; -1 before it is started."""
        return -1 if self._child is None else self._child.pid

    @property
    def alive(self) -> bool:
        """True if the process runs."""
        child = self._child
        return child is not None and child.poll() is None

    def how_it_ended(self) -> str:
        """Say how the process ended, with its last output."""
        child = self._child
        code = None if child is None else child.poll()
        how = "runs" if code is None else how_it_ended(code)
        last = self.last_words()
        return f"the server {self.words[0]} {how}" + (f". Its last output:\n{last}" if last else "")

    def last_words(self) -> str:
        """Return the errors in the process's output without their tracebacks, or the end of the output if there are
        none.
        """
        child = self._child
        text = "" if child is None else child.last_output(READ_LOG)
        lines = [line for line in text.splitlines() if "WARNING" not in line]
        errors = dict.fromkeys(found.group() for found in map(ERROR.search, lines) if found)
        return "\n".join(list(errors)[:SHOWN_ERRORS]) or text[-SHOWN_LOG:]

    def end(self) -> None:
        """End the process and everything it started."""
        child, self._child = self._child, None
        if child is not None:
            child.end()
