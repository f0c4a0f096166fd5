"""The protocol of a runtime: a place with a working folder in which commands run, contained."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal, Protocol, runtime_checkable

from grouprl.core.errors import InputError, RunError
from grouprl.sandbox.folder import Folder, FolderEntry

SECONDS = 10.0
OUTPUT_KB = 64
LONGEST_FILE = 1 << 20
"""Bytes of a file that is read."""

Stopped = Literal["", "timeout", "output", "memory", "killed"]
"""What stopped a command: its time, how much it printed, its memory, or another limit of the runtime; '' where it came
to an end of its own."""


class RuntimeLost(RunError):
    """A runtime does not answer any more, or cannot be started: the machine's doing, never a verdict on the policy."""


@dataclass(frozen=True)
class CommandOutcome:
    """What came of a command. All of it is the command's doing: believe nothing that it says of itself."""

    exit_code: int | None
    """Its exit status, 127 where there is no such command; None where it was stopped or ended by a signal."""
    stdout: str = ""
    """What it printed, as UTF-8; bytes that are no UTF-8 are shown as the replacement character."""
    stderr: str = ""
    """The same of the standard error."""
    stopped: Stopped = ""
    what: str = ""
    """In words why it was stopped, or why what it changed was not kept; else empty."""

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit status 0."""
        return self.exit_code == 0


@runtime_checkable
class Runtime(Protocol):
    """A working folder, and commands that run in it one after the other.

    `start` before anything else, `stop` in the end; a runtime that was stopped can be started again and is then empty.
    Every command begins in the working folder and sees what earlier ones left there. Nothing else need last from one
    command to the next: no processes, no variables of a shell, no files elsewhere.

    Paths are relative to the working folder; others, and such with '..', are refused (InputError). Where the place
    itself fails, `RuntimeLost` is raised; nothing that a command does makes a method raise.
    `grouprl.testing.check_runtime` holds any implementation to this.
    """

    def start(self, folder: Folder | None = None) -> None:
        """Make the place ready; the working folder holds `folder`.

        Raises:
            InputError: this machine has no such place.
            RuntimeLost: it cannot be started.
        """
        ...

    def stop(self) -> None:
        """Give back what the place holds, and end what runs in it; may be called twice."""
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
            seconds: after so many it is stopped.
            output_kb: KiB of output, and as many of errors, after which it is stopped.

        Raises:
            InputError: an empty command, or one that holds a NUL.
        """
        ...

    def write(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        """Write a file, with the folders around it; what stood there is replaced.

        Raises:
            InputError: a path outside, or one where no file can be.
        """
        ...

    def read(self, path: str, most: int = LONGEST_FILE) -> bytes:
        """Return the first `most` bytes of a file.

        Raises:
            InputError: a path outside, or one where there is no file.
        """
        ...

    def snapshot(self) -> Folder:
        """Return all that the working folder holds."""
        ...

    def restore(self, folder: Folder) -> None:
        """Let the working folder hold this and nothing else."""
        ...


def inside(path: str) -> str:
    """Return a path without needless parts. Raises InputError for one that is not inside the working folder."""
    parts = PurePosixPath(path)
    if not parts.parts or parts.is_absolute() or ".." in parts.parts or "\0" in path:
        raise InputError(f"The path {path!r} is not inside the working folder", "it is relative and holds no '..'")
    return str(parts)


def words_of(command: str | Sequence[str], shell: Sequence[str]) -> list[str]:
    """Return the words of a command; a text is one more word of the shell's. Raises InputError for no command."""
    words = [*shell, command] if isinstance(command, str) else list(command)
    if not command or not words[-1 if isinstance(command, str) else 0] or any("\0" in word for word in words):
        raise InputError(f"The command {command!r} cannot be run", "it is not empty, and holds no NUL")
    return words


def as_bytes(content: str | bytes) -> bytes:
    """Return a text as UTF-8."""
    return content.encode(errors="surrogatepass") if isinstance(content, str) else content


def folder_of(files: Mapping[str, str | bytes | FolderEntry]) -> dict[str, FolderEntry]:
    """Return a folder of files by path, with the folders around them. Raises InputError for paths outside."""
    found: dict[str, FolderEntry] = {}
    for name, content in files.items():
        path = inside(name)
        for parent in reversed(PurePosixPath(path).parents[:-1]):
            found.setdefault(str(parent), FolderEntry("folder", 0o755))
        found[path] = content if isinstance(content, FolderEntry) else FolderEntry(content=as_bytes(content))
    return dict(sorted(found.items()))


def folder_digest(folder: Folder, *, times: bool = False) -> str:
    """Return a hash of all that a folder holds, with or without the times of changes."""
    found = hashlib.blake2b(digest_size=12)
    for path, entry in sorted(folder.items()):
        head = f"{path}\0{entry.kind}\0{entry.mode}\0{len(entry.content)}\0{entry.time if times else ''}\0"
        found.update(head.encode(errors="surrogatepass") + entry.content)
    return found.hexdigest()
