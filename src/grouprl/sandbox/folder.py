"""A folder as a value: it carries the files of one command to the next, which runs in a sandbox of its own.

Names are as the system decodes them; contents are bytes. Pipes, sockets and devices are left out, and two names of one
file become two files.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from grouprl.sandbox import leftovers

Kind = Literal["file", "folder", "link"]
EPOCH = 1_704_067_200
"""Start of a folder's own clock (2024-01-01), which makes modification times independent of the real time."""
PERMISSIONS = 0o777


@dataclass(frozen=True)
class FolderEntry:
    """A file, a folder or a symbolic link."""

    kind: Kind = "file"
    mode: int = 0o644
    """Permission bits."""
    content: bytes = b""
    """The bytes of a file, or the target of a link."""
    time: float = EPOCH
    """Time of the last change, in seconds of the folder's own clock, which advances a second per command."""


Folder = Mapping[str, FolderEntry]
"""Entries by relative path, parents before their children."""
Plain = tuple[str, str, int, bytes, float]
"""An entry as it is sent to the fork server: path, kind, mode, content, time."""


def plain(folder: Folder) -> list[Plain]:
    """Return a folder as tuples, parents first."""
    return [(path, e.kind, e.mode, e.content, e.time) for path, e in sorted(folder.items())]


def place(root: str, entries: Iterable[Plain]) -> None:
    """Create the entries in the empty folder `root` without following links."""
    made: list[tuple[str, int, float]] = []
    for path, kind, mode, content, seconds in entries:
        where = os.path.join(root, path)
        if kind == "folder":
            os.mkdir(where, 0o700)
            made.append((where, mode, seconds))
        elif kind == "link":
            os.symlink(content, os.fsencode(where))
            os.utime(where, (seconds, seconds), follow_symlinks=False)
        else:
            _write(where, mode, content, seconds)
    for where, mode, seconds in reversed(made):
        os.chmod(where, mode & PERMISSIONS)
        os.utime(where, (seconds, seconds))
    os.utime(root, (EPOCH, EPOCH))


def _write(where: str, mode: int, content: bytes, seconds: float) -> None:
    target = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(target, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fchmod(target, mode & PERMISSIONS)
        os.utime(target, (seconds, seconds))


class TooLarge(Exception):
    """A folder cannot be kept: it holds too much, is nested too deeply, or cannot be read; the message says which."""


def take(root: str, most: int, entries: int, began: float, now: float) -> list[Plain]:
    """Return the entries of a folder; those changed since `began` get the time `now` of the folder's own clock.

    Args:
        root: the folder; nothing may write to it any more.
        most: the largest total size of its files, in bytes.
        entries: the largest number of its entries.
        began: start of the command, by the system's clock.
        now: time of the folder's own clock.

    Raises:
        TooLarge: if the folder exceeds these limits, is nested too deeply, or holds something unreadable.
    """
    found: list[Plain] = []
    for entry in leftovers.entries(root):
        if entry is None:
            raise TooLarge(f"something in it is more than {leftovers.DEEPEST} folders deep, or cannot be read")
        if len(found) >= entries:
            raise TooLarge(f"it holds more than {entries} files and folders")
        taken = _taken(root, *entry, most)
        if taken is not None:
            most -= len(taken[3])
            found.append((*taken[:4], now if began - 1 <= taken[4] <= time.time() + 1 else taken[4]))
    return sorted(found)


def _taken(root: str, path: str, mode: int, most: int) -> Plain | None:
    name, seconds = os.path.relpath(path, root), os.lstat(path).st_mtime
    if stat.S_ISDIR(mode):
        return name, "folder", stat.S_IMODE(mode) & PERMISSIONS, b"", seconds
    if stat.S_ISLNK(mode):
        return name, "link", PERMISSIONS, os.fsencode(os.readlink(path)), seconds
    if not stat.S_ISREG(mode):
        return None
    return name, "file", stat.S_IMODE(mode) & PERMISSIONS, _content(path, most), seconds


def _content(path: str, most: int) -> bytes:
    try:
        source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise TooLarge(f"a file in it cannot be read: {error.strerror}") from error
    with contextlib.closing(open(source, "rb")) as opened:
        content = opened.read(most + 1)
    if len(content) > most:
        raise TooLarge("its files together exceed their size limit")
    return content


def rebuilt(heads: Iterable[tuple[str, Kind, int, float, int]], contents: Iterable[bytes]) -> dict[str, FolderEntry]:
    """Return the folder that a reply of the fork server describes."""
    return {
        path: FolderEntry(kind, mode, content, seconds)
        for (path, kind, mode, seconds, _), content in zip(heads, contents, strict=True)
    }
