"""Searching, measuring and removing the files that a program leaves, however deep, numerous or odd they are.

A program may nest folders deeper than a path can be long, so nothing here recurses or builds long paths.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

MOST_FILES = 256
"""Largest number of files that are returned."""
MOST_ENTRIES = 1024
"""Largest number of entries in a program's folder on a disk: removing more would delay the next program."""
DEEPEST = 64
"""Depth of nested folders to which files are searched for."""


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
        except (OSError, UnicodeEncodeError):  # unreadable, or with a name that is not text
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
    """Yield (path, mode) of everything below a folder in order; None for a folder that cannot be read."""
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
    """Return a message if a process's files take more than `most` bytes or are too many; else "".

    The count includes removed files that are still open or mapped.
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
    """Yield the size in bytes of everything below a folder; works on descriptors, because paths may be too long."""
    for descriptor in _folders(folder):
        with os.scandir(descriptor) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    yield max(found.st_size, 512 * found.st_blocks) if stat.S_ISREG(found.st_mode) else 0


def _folders(folder: str) -> Iterator[int]:
    """Yield an open descriptor of a folder and of each folder below it in turn; each is closed afterwards."""
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
    """Return the sizes of a process's files that no longer have a name but are still open or mapped.

    The size of a mapped file is unknown: it counts as the largest possible one.
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
    """Remove a folder and everything below it; folders so deep that their paths grow long are first moved up."""
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
                os.chmod(path, 0o700)  # without these permissions its owner can neither list nor move it
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
"""Length of a path, in characters, from which folders are moved up; the system allows 4096, and 255 for a name."""


def _emptied_of_files(folder: str) -> list[str]:
    """Remove everything but folders from a folder; return the names of those folders."""
    names: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                names.append(entry.name)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
    return names
