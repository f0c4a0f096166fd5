"""Messages between a process and its child: frames of pickles to the child, lines of JSON back.

A frame is eight bytes of length and a pickle. A child may run code that nobody has tested, so its parent never
unpickles what comes from it: that is JSON, one list on a line.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
from _thread import allocate_lock  # `threading` would make each fork of a process three times as slow
from collections.abc import Iterator
from typing import Any

LENGTH = struct.Struct(">Q")
"""The length that begins a frame."""
PIECE = 1 << 20


class BadReply(Exception):
    """A child sent something that is not a reply."""


def framed(payload: bytes) -> bytes:
    """Return the frame that holds `payload`."""
    return LENGTH.pack(len(payload)) + payload


def frames(source: int) -> Iterator[Any]:
    """Yield what the parent sends, until it closes its side."""
    while head := read_exactly(source, LENGTH.size):
        yield pickle.loads(read_exactly(source, LENGTH.unpack(head)[0]))


def read_exactly(source: int, count: int) -> bytes:
    """Return `count` bytes; none where the other side closes before."""
    found = bytearray()
    while len(found) < count:
        piece = os.read(source, min(count - len(found), PIECE))
        if not piece:
            return b""
        found += piece
    return bytes(found)


def write_all(target: int, content: bytes) -> None:
    """Write all of `content`, waiting as long as it takes."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(target, rest) :]


def reply_line(values: object) -> bytes:
    """Return the line that states `values`."""
    return json.dumps(values).encode() + b"\n"


def parse_reply(line: bytes | bytearray) -> list[Any]:
    """Return the values that a line states.

    Raises:
        BadReply: the line is not a JSON list with something in it.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadReply(f"{bytes(line[:60])!r}") from error
    if not isinstance(found, list) or not found:
        raise BadReply(f"{bytes(line[:60])!r}")
    return found


class Replies:
    """The child's side of its replies, usable from several threads."""

    def __init__(self, target: int) -> None:
        self._target, self._owner, self._lock = target, os.getpid(), allocate_lock()

    def __call__(self, *values: object) -> None:
        """Send a reply. A process that user code forked, and that came back from there, ends instead."""
        if os.getpid() != self._owner:
            os._exit(0)
        line = reply_line(values)
        with self._lock:
            write_all(self._target, line)
