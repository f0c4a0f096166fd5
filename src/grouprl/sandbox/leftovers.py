"""What a program leaves in its folder: looked through, measured and removed, however deep, many or odd it is.

A program may nest folders deeper than a path can be long, so nothing here recurses or builds long paths.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

MOST_FILES = 256
"""Files that are handed out."""
MOST_ENTRIES = 1024
"""Names that a program may have in its folder on a disk: removing more would keep the next program waiting."""
DEEPEST = 64
"""Folders below folders that are looked into for files to hand out."""


def new_files(folder: str, given: dict[str, bytes], most: int) -> tuple[dict[str, bytes], bool]:
    """Return the regular files that are new or changed, and whether some were left out; links are not followed."""
    found: dict[str, bytes] = {}
    for seen, entry in enumerate(entries(folder)):
        if entry is None or seen > MOST_ENTRIES:
            return found, True
        path, mode = entry
        if not stat.S_ISREG(mode):
            continue
        name = os.path.relpath(path, folder)
        try:
            source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            name.encode()
        except (OSError, UnicodeEncodeError):  # made unreadable, or named with bytes that are no text
            return found, True
        with open(source, "rb") as opened:
            content = opened.read(most + 1)
        if given.get(name) == content:
            continue
        most -= len(content)
        if most < 0 or len(found) >= MOST_FILES:
            return found, True
        found[name] = content
    return found, False


def entries(folder: str) -> Iterator[tuple[str, int] | None]:
    """Yield (path, mode) of everything below a folder in order; None where something cannot be looked into."""
    waiting = [(folder, 0)]
    while waiting:
        where, depth = waiting.pop()
        folders = []
        try:
            names = sorted(os.listdir(where))
        except OSError:
            yield None
            continue
        for name in names:
            path = os.path.join(where, name)
            try:
                mode = os.lstat(path).st_mode
            except OSError:
                yield None
                continue
            yield path, mode
            if stat.S_ISDIR(mode) and depth < DEEPEST:
                folders.append((path, depth + 1))
            elif stat.S_ISDIR(mode):
                yield None
        waiting += reversed(folders)


def too_much(folder: str, most: int, process: int) -> str:
    """Return in words why the files of a process take more than `most` bytes or too many names; else "".

    Counts what is in the folder, and what was removed and is still open or in use.
    """
    used, names = 0, 0
    for size in _sizes(folder):
        used, names = used + size, names + 1
        if used > most or names > MOST_ENTRIES:
            break
    if names > MOST_ENTRIES:
        return f"it made more than {MOST_ENTRIES} files"
    if used + sum(_removed(folder, process).values()) > most:
        return f"its files took more than {most >> 20} MiB together"
    return ""


def _sizes(folder: str) -> Iterator[int]:
    """Yield the bytes of everything below a folder, by descriptors of folders as their paths may be too long."""
    for descriptor in _folders(folder):
        with os.scandir(descriptor) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    yield max(found.st_size, 512 * found.st_blocks) if stat.S_ISREG(found.st_mode) else 0


def _folders(folder: str) -> Iterator[int]:
    """Yield an open descriptor of a folder and of all below it, one after the other; each is closed afterwards."""
    waiting = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)]
    try:
        while waiting:
            here = waiting.pop()
            try:
                yield here
                waiting += _opened(here, MOST_OPEN - len(waiting))
            finally:
                os.close(here)
    finally:
        for left in waiting:
            os.close(left)


MOST_OPEN = 256


def _opened(folder: int, most: int) -> list[int]:
    found: list[int] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if len(found) < most and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                    found.append(os.open(entry.name, flags, dir_fd=folder))
    return found


def _removed(folder: str, process: int) -> dict[tuple[int, int], int]:
    """Return the sizes of files of a process that have no name any more: open ones, and those it has mapped.

    How large a mapped one is cannot be seen: it counts for as much as the largest can be.
    """
    device, found = os.stat(folder).st_dev, {}
    for thread in _listed(f"/proc/{process}/task"):
        for number in _listed(f"/proc/{process}/task/{thread}/fd"):
            with contextlib.suppress(OSError):
                seen = os.stat(f"/proc/{process}/task/{thread}/fd/{number}")
                if stat.S_ISREG(seen.st_mode) and not seen.st_nlink and seen.st_dev == device:
                    found[seen.st_dev, seen.st_ino] = max(seen.st_size, 512 * seen.st_blocks)
    with contextlib.suppress(OSError), open(f"/proc/{process}/maps", errors="replace") as maps:
        for line in maps:
            if line.endswith(" (deleted)\n") and folder in line:
                found.setdefault((device, int(line.split(maxsplit=5)[4])), LARGEST)
    return found


LARGEST = 1 << 40


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def remove(folder: str) -> None:
    """Remove a folder and all below it. What lies so deep that its path grows long is first moved up."""
    waiting, emptied, moved = [folder], [], 0
    while waiting:
        where = waiting.pop()
        emptied.append(where)
        for name in _emptied_of_files(where):
            path = os.path.join(where, name)
            with contextlib.suppress(OSError):
                os.rmdir(path)  # most are empty
                continue
            with contextlib.suppress(OSError):
                os.chmod(path, 0o700)  # what is not open to its owner can neither be looked into nor moved
            if len(path) > LONG:
                moved += 1
                above = f"{folder}.{moved}"
                with contextlib.suppress(OSError):
                    os.rename(path, above)
                    path = above
            waiting.append(path)
    for path in reversed(emptied):
        with contextlib.suppress(OSError):
            os.rmdir(path)


LONG = 1024
"""Characters of a path; the system's limit is 4096, and a name has at most 255."""


def _emptied_of_files(folder: str) -> list[str]:
    """Remove what is no folder from a folder; return the names of the folders in it."""
    names: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                names.append(entry.name)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
    return names
