"""A child process: a bare Python interpreter that calls one function and ends, with its own children, when its parent
does.

The child imports the module of the function and what that imports, nothing else: not the main script, and torch only if
that module needs it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Protocol, TypeAlias

FileOrFlag: TypeAlias = int | IO[bytes]


def search_path() -> list[str]:
    """Return this process's search path for modules, with its working folder in place of "", so that a child finds the
    same ones.
    """
    here = os.getcwd()
    path = [here if entry == "" else entry for entry in sys.path]
    return path if here in path else [*path, here]


def bare_command(main: Callable[..., object], *words: object) -> list[str]:
    """Return the command line of a Python that calls the module's function `main` with `words` as texts."""
    return [sys.executable, "-u", "-c", call_of(main, f"sys.path[:] = {search_path()!r}"), *map(str, words)]


def call_of(main: Callable[..., object], place: str) -> str:
    """Return a Python program that calls `main` with its arguments; `place` is code that makes it importable."""
    module, name = main.__module__, main.__name__
    return f"import sys; {place}; sys.argv[0] = {module!r}; from {module} import {name}; {name}(*sys.argv[1:])"


class ChildProcess(subprocess.Popen[bytes]):
    """A process that calls `main(lifeline, *words)` in a session of its own.

    `main` passes its first argument, a file descriptor, to `die_with`, so that the kernel ends the process and its
    children when this process ends. `files` are open files that the child inherits.
    """

    def __init__(
        self,
        main: Callable[..., object],
        *words: object,
        files: Sequence[int] = (),
        output: FileOrFlag = subprocess.DEVNULL,
        errors: FileOrFlag = subprocess.STDOUT,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process. Raises OSError if it cannot be started."""
        lifeline, self._lifeline = os.pipe()
        try:
            super().__init__(
                bare_command(main, lifeline, *words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                bufsize=0,
                pass_fds=(lifeline, *files),
                start_new_session=True,
                env=environment,
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline)

    def end(self) -> None:
        """Kill the process and its children at once, and wait for it; may be called twice."""
        lifeline, self._lifeline = self._lifeline, -1
        # Only once: after the process was waited for, its number may be that of another group.
        if lifeline >= 0:
            end_group(self)
            os.close(lifeline)


class LoggedProcess(ChildProcess):
    """A child whose output goes to a file; the end of that file is shown when the child fails."""

    def __init__(
        self,
        main: Callable[..., object],
        *words: object,
        files: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process. Raises OSError if it cannot be started."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # it is read until the process is ended
        try:
            super().__init__(main, *words, files=files, output=self._log, environment=environment)
        except BaseException:
            self._log.close()
            raise

    def end(self) -> None:
        """Kill the process and its children at once, wait for it, and close its log; may be called twice."""
        super().end()
        self._log.close()

    def last_output(self, most: int) -> str:
        """Return the end of the process's output, at most `most` bytes; '' after `end`."""
        if self._log.closed:
            return ""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), most, max(0, size - most)).decode(errors="replace").strip()


class Child(Protocol):
    """A process that leads a session, with the interface of `subprocess.Popen` that workers need."""

    pid: int

    @property
    def returncode(self) -> int | None:
        """Its exit code; None until it is known to have ended."""
        ...

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the process has ended. Raises subprocess.TimeoutExpired."""
        ...

    def end(self) -> None:
        """Kill the process and its children at once, and wait for it."""
        ...


def end_group(child: Child) -> None:
    """Kill a session leader and its children at once, and wait for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def how_it_ended(code: int) -> str:
    """Describe the end of a process from its exit code."""
    if code >= 0:
        return f"ended by itself with exit code {code}"
    name = next((each.name for each in signal.Signals if each == -code), str(-code))
    return f"was ended by the signal {name}" + (", often for lack of memory" if name == "SIGKILL" else "")
