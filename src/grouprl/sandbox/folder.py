"""A folder as a value: what commands left in it, so that the next command, behind walls of its own, finds it again.

Names are as the system decodes them; contents are bytes. Pipes, sockets and devices are no part of it, and two names
of one file are two files.
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
"""The clock of folders begins here (2024-01-01): what an earlier command wrote has a time that no clock decides."""
PERMISSIONS = 0o777


@dataclass(frozen=True)
class FolderEntry:
    """A file, a folder or a symbolic link."""

    kind: Kind = "file"
    mode: int = 0o644
    """Permissions."""
    content: bytes = b""
    """The bytes of a file, or where a link leads."""
    time: float = EPOCH
    """When it was last changed, in seconds: that of the folder's own clock, a second for each command."""


Folder = Mapping[str, FolderEntry]
"""Entries by relative path, parents before what lies in them."""
Plain = tuple[str, str, int, bytes, float]
"""An entry on its way to the fork server: path, kind, mode, content, time."""


def plain(folder: Folder) -> list[Plain]:
    """Return a folder as tuples, parents first."""
    return [(path, e.kind, e.mode, e.content, e.time) for path, e in sorted(folder.items())]


def place(root: str, entries: Iterable[Plain]) -> None:
    """Make the entries in the empty folder `root`; no link is followed."""
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
    """A folder cannot be kept: it holds too much, lies too deep, or cannot be read; says which."""


def take(root: str, most: int, entries: int, began: float, now: float) -> list[Plain]:
    """Return what is in a folder; what was changed since `began` has the time `now` of the folder's own clock.

    Args:
        root: the folder; nothing may write to it any more.
        most: bytes of all files together.
        entries: names of all kinds together.
        began: when the command began, by the system's clock.
        now: what the folder's own clock shows.

    Raises:
        TooLarge: if it holds more, lies too deep, or holds what cannot be read.
    """
    found: list[Plain] = []
    for entry in leftovers.entries(root):
        if entry is None:
            raise TooLarge(f"something lies more than {leftovers.DEEPEST} folders deep, or cannot be read")
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
        raise TooLarge("its files take more than they may together")
    return content


def rebuilt(heads: Iterable[tuple[str, Kind, int, float, int]], contents: Iterable[bytes]) -> dict[str, FolderEntry]:
    """Return the folder that a reply of the fork server describes."""
    return {
        path: FolderEntry(kind, mode, content, seconds)
        for (path, kind, mode, seconds, _), content in zip(heads, contents, strict=True)
    }
