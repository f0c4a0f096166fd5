"""Folders as tar files. A policy may have written whatever a place sends, so archives are read by a few strict rules.

Python's `tarfile` follows what an archive claims about sizes, sparse maps and links before it can be limited. Here,
only plain files, folders and links are read, no size may exceed the bytes that follow it, and the rest is refused.
"""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
from collections.abc import Iterator

from grouprl.sandbox import Folder, FolderEntry

BLOCK = 512
MOST_ENTRIES = 1 << 16
LATEST = 1 << 40
"""The latest time of change, in seconds: no clock shows later ones, and programs fail on them."""
FILE, HARD_LINK, LINK, FOLDER = (b"0", b"\0"), b"1", b"2", b"5"
LEFT_OUT = (b"3", b"4", b"6", b"g")
"""Devices, pipes and headers about the whole archive."""
NAMED = {b"L": "path", b"K": "linkpath"}
READ_PAX = ("path", "linkpath", "size", "mtime")
PERMISSIONS = 0o777


class BrokenArchive(Exception):
    """An archive breaks a rule; the message says which."""


def packed(folder: Folder) -> bytes:
    """Return a folder as a tar file."""
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, entry in sorted(folder.items()):
            head = tarfile.TarInfo(path)
            head.mode, head.mtime = entry.mode, entry.time
            head.type = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}[entry.kind]
            if entry.kind == "link":
                head.linkname = os.fsdecode(entry.content)
            head.size = len(entry.content) if entry.kind == "file" else 0
            archive.addfile(head, io.BytesIO(entry.content) if entry.kind == "file" else None)
    return found.getvalue()


def unpacked(content: bytes, most: int) -> dict[str, FolderEntry]:
    """Return the entries of a tar file without writing them to disk; names outside the folder are left out.

    Args:
        content: the archive.
        most: largest number of bytes of all files together, where a hard link counts as a file.

    Raises:
        BrokenArchive: if the archive is broken, too large, or holds something other than files, folders and links.
    """
    found: dict[str, FolderEntry] = {}
    for head, kind, body in _members(content):
        path = _inside(head["path"])
        if len(found) >= MOST_ENTRIES:
            raise BrokenArchive(f"it holds more than {MOST_ENTRIES:,} names")
        if path is None:
            continue
        mode, seconds = _octal(head["mode"]) & PERMISSIONS, _seconds(head["mtime"])
        if kind == FOLDER:
            found[path] = FolderEntry("folder", mode, time=seconds)
        elif kind == LINK:
            found[path] = FolderEntry("link", PERMISSIONS, head["linkpath"], seconds)
        else:
            body = _linked(found, head["linkpath"]) if kind == HARD_LINK else body
            most -= len(body)
            if most < 0:
                raise BrokenArchive("its files together are too large")
            found[path] = FolderEntry("file", mode, body, seconds)
    return dict(sorted(found.items()))


def _members(content: bytes) -> Iterator[tuple[dict[str, bytes], bytes, bytes]]:
    """Yield the fields, the kind and the content of each member; long names and pax headers are merged into them."""
    at, later = 0, dict[str, bytes]()
    while at + BLOCK <= len(content) and any(block := content[at : at + BLOCK]):
        _check_sum(block)
        kind, head = block[156:157], _fields(block) | later
        size = _octal(head["size"]) if kind in (*FILE, *NAMED, b"x", b"g") else 0
        begin = at + BLOCK
        at = begin + -(-size // BLOCK) * BLOCK
        if begin + size > len(content):
            raise BrokenArchive("it ends within a file")
        body = content[begin : begin + size]
        if kind in NAMED:
            later[NAMED[kind]] = body.rstrip(b"\0")
        elif kind == b"x":
            later |= _pax(body)
        elif kind in (*FILE, HARD_LINK, LINK, FOLDER):
            later = {}
            yield head, FOLDER if kind in FILE and head["path"].endswith(b"/") else kind, body
        elif kind in LEFT_OUT:
            later = later if kind == b"g" else {}
        else:
            raise BrokenArchive(f"it holds a member of the kind {kind!r}, which is not a file, a folder or a link")


def _fields(block: bytes) -> dict[str, bytes]:
    """Return the fields of a header; ustar's prefix of the name is GNU's room for other fields."""
    name, prefix = _text(block[:100]), _text(block[345:500]) if block[257:263] == b"ustar\0" else b""
    path = prefix + b"/" + name if prefix else name
    return {
        "path": path,
        "linkpath": _text(block[157:257]),
        "mode": block[100:108],
        "size": block[124:136],
        "mtime": block[136:148],
    }


def _pax(body: bytes) -> dict[str, bytes]:
    """Return those records "length key=value" of a pax header that are read here."""
    found: dict[str, bytes] = {}
    while body:
        length, space, _ = body[:20].partition(b" ")
        count = int(length) if space and length.isdigit() else 0
        key, equals, value = body[len(length) + 1 : count - 1].partition(b"=")
        if not len(length) + 2 < count <= len(body) or not equals:
            raise BrokenArchive("a pax header is broken")
        if key.startswith(b"GNU.sparse."):
            raise BrokenArchive("it holds a sparse file")
        if (name := key.decode(errors="replace")) in READ_PAX:
            found[name] = b"+" + value if name in ("size", "mtime") else value
        body = body[count:]
    return found


def _check_sum(block: bytes) -> None:
    if _octal(block[148:156]) != sum(block[:148]) + 8 * ord(" ") + sum(block[156:]):
        raise BrokenArchive("a header's check sum is wrong")


def _octal(field: bytes) -> int:
    """Return the number in a field: octal digits, GNU's binary form, or a pax header's decimal one, after a plus."""
    if field[:1] == b"+":
        digits, base = field[1:], 10
    elif field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    else:
        digits, base = field.strip(b" \0"), 8
    if digits and not (len(digits) <= 20 and digits.isdigit()):
        raise BrokenArchive(f"{bytes(field[:40])!r} is not a number")
    try:
        return int(digits or b"0", base)
    except ValueError:
        raise BrokenArchive(f"{bytes(field[:40])!r} is not a number") from None


def _seconds(field: bytes) -> float:
    """Return a time of change without parts of a second; one before 1970 or after `LATEST` is put there."""
    before = field.startswith((b"\xff", b"+-"))
    return 0.0 if before else float(min(_octal(field.partition(b".")[0]), LATEST))


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _inside(name: bytes) -> str | None:
    """Return the normal form of a path in the folder; None for the folder itself, or a path outside it."""
    path = posixpath.normpath(os.fsdecode(name))
    outside = path.startswith(("/", "../")) or path == ".."
    return None if not name or path == "." or outside or "\0" in path else path


def _linked(found: dict[str, FolderEntry], name: bytes) -> bytes:
    """Return the content of the file, earlier in the archive, that a hard link names."""
    entry = found.get(_inside(name) or "")
    if entry is None or entry.kind != "file":
        raise BrokenArchive("a hard link names no file before it")
    return entry.content
