"""The protocol of a runtime: a confined place with a working folder, in which commands run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal, Protocol, runtime_checkable

from grouprl.core.answering import Answering
from grouprl.core.errors import InputError, RunError
from grouprl.sandbox.folder import Folder, FolderEntry

SECONDS = 10.0
OUTPUT_KB = 64
LONGEST_FILE = 1 << 20
"""Largest number of bytes that are read from a file."""

Stopped = Literal["", "timeout", "output", "memory", "killed"]
"""The limit that stopped a command: its time, output, memory, or another limit of the runtime; '' if the command ended
by itself."""


class RuntimeLost(RunError):
    """A runtime no longer answers or cannot be started; the machine is to blame, never the policy."""


class FolderUnreadable(Exception):
    """The working folder cannot be returned: commands left too much in it, or nothing that can be read.

    The policy is to blame: an episode's tests fail on such a folder.
    """


@dataclass(frozen=True)
class CommandOutcome:
    """The outcome of a command. The command controlled its output: trust nothing that it says about itself."""

    exit_code: int | None
    """Exit status; 127 if there is no such command, None if it was stopped or ended by a signal."""
    stdout: str = ""
    """Standard output, decoded as UTF-8; invalid bytes become the replacement character."""
    stderr: str = ""
    """Standard error, decoded in the same way."""
    stopped: Stopped = ""
    what: str = ""
    """The reason why the command was stopped, or its changes not kept; else empty."""

    @property
    def ok(self) -> bool:
        """True if the command ended by itself with exit status 0."""
        return self.exit_code == 0


@runtime_checkable
class Runtime(Protocol, metaclass=Answering):
    """A place with a working folder, and commands that run in it one after the other.

    Call `start` before anything else and `stop` at the end; a stopped runtime can be started again and is then empty.
    Every command begins in the working folder and sees the files that earlier ones left there. Nothing else has to
    persist between commands: no processes, no shell variables, no files elsewhere.

    Paths are relative to the working folder; absolute paths and paths with '..' are refused (InputError). If the place
    itself fails, `RuntimeLost` is raised. Nothing that a command does makes a method raise, but for `snapshot`.
    `grouprl.testing.check_runtime` holds any implementation to this.
    """

    def start(self, folder: Folder | None = None) -> None:
        """Make the place ready; the working folder holds `folder`.

        Raises:
            InputError: if this machine has no such place.
            RuntimeLost: if the place cannot be started.
        """
        ...

    def stop(self) -> None:
        """Release the place and end all its processes; may be called twice."""
        ...

    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes = "",
        seconds: float = SECONDS,
        output_kb: int = OUTPUT_KB,
    ) -> CommandOutcome:
        """Run a command and wait for its end.

        Args:
            command: a program and its arguments, or a text for the shell.
            stdin: its standard input.
            seconds: time limit, after which it is stopped.
            output_kb: limit of the output, and separately of the error output, in KiB.

        Raises:
            InputError: if the command is empty or holds a NUL.
        """
        ...

    def write(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        """Write a file, replacing any old one, and create its parent folders.

        Raises:
            InputError: if the path is outside the working folder, or no file can be written there.
        """
        ...

    def read(self, path: str, most: int = LONGEST_FILE) -> bytes:
        """Return the first `most` bytes of a file.

        Raises:
            InputError: if the path is outside the working folder, or there is no file.
        """
        ...

    def snapshot(self) -> Folder:
        """Return the contents of the working folder.

        Raises:
            FolderUnreadable: if commands have left a folder that is too large, or cannot be read.
        """
        ...

    def restore(self, folder: Folder) -> None:
        """Replace the contents of the working folder."""
        ...


def not_started() -> InputError:
    """Return the error for a call to a runtime that is not started."""
    return InputError("The runtime is not started", "a runtime runs between start() and stop()", "Call start() first")


def no_file(path: str) -> InputError:
    """Return the error for reading a file that does not exist."""
    what = f"There is no file {path!r} in the working folder"
    return InputError(what, remedy="Check the path, or write the file first")


def inside(path: str) -> str:
    """Return the normal form of a path; raise InputError if it is not inside the working folder."""
    parts = PurePosixPath(path)
    if not parts.parts or parts.is_absolute() or ".." in parts.parts or "\0" in path:
        raise InputError(f"The path {path!r} is not inside the working folder", "it must be relative and hold no '..'")
    return str(parts)


def words_of(command: str | Sequence[str], shell: Sequence[str]) -> list[str]:
    """Return the argument list of a command; a text is passed to the shell. Raise InputError for an empty command."""
    words = [*shell, command] if isinstance(command, str) else list(command)
    if not command or not words[-1 if isinstance(command, str) else 0] or any("\0" in word for word in words):
        raise InputError(f"The command {command!r} cannot be run", "it must not be empty or hold a NUL")
    return words


def as_bytes(content: str | bytes) -> bytes:
    """Return a text as UTF-8."""
    return content.encode(errors="surrogatepass") if isinstance(content, str) else content


def folder_of(files: Mapping[str, str | bytes | FolderEntry]) -> dict[str, FolderEntry]:
    """Return a folder from files by path, with their parent folders; raise InputError for paths outside."""
    found: dict[str, FolderEntry] = {}
    for name, content in files.items():
        path = inside(name)
        for parent in reversed(PurePosixPath(path).parents[:-1]):
            found.setdefault(str(parent), FolderEntry("folder", 0o755))
        found[path] = content if isinstance(content, FolderEntry) else FolderEntry(content=as_bytes(content))
    return dict(sorted(found.items()))


def folder_digest(folder: Folder, *, times: bool = False) -> str:
    """Return a hash of a folder's contents, with or without modification times."""
    found = hashlib.blake2b(digest_size=12)
    for path, entry in sorted(folder.items()):
        head = f"{path}\0{entry.kind}\0{entry.mode}\0{len(entry.content)}\0{entry.time if times else ''}\0"
        found.update(head.encode(errors="surrogatepass") + entry.content)
    return found.hexdigest()
