"""Messages between a process and its child: frames of pickles to the child, lines of JSON back.

A frame is eight bytes of length and a pickle. A child may run untested code, so its parent never unpickles anything
from it: each reply is a JSON list on one line.
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
"""The length at the start of a frame."""
PIECE = 1 << 20


class BadReply(Exception):
    """Error: a child sent something that is not a reply."""


def framed(payload: bytes) -> bytes:
    """Return `payload` as a frame."""
    return LENGTH.pack(len(payload)) + payload


def frames(source: int) -> Iterator[Any]:
    """Yield the messages of the parent until it closes its side."""
    while head := read_exactly(source, LENGTH.size):
        yield pickle.loads(read_exactly(source, LENGTH.unpack(head)[0]))


def read_exactly(source: int, count: int) -> bytes:
    """Return exactly `count` bytes; b"" if the other side closes first."""
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
    """Return `values` as a line."""
    return json.dumps(values).encode() + b"\n"


def parse_reply(line: bytes | bytearray) -> list[Any]:
    """Return the values in a line.

    Raises:
        BadReply: the line is not a non-empty JSON list.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadReply(f"{bytes(line[:60])!r}") from error
    if not isinstance(found, list) or not found:
        raise BadReply(f"{bytes(line[:60])!r}")
    return found


class Replies:
    """The child's channel for replies, usable from several threads."""

    def __init__(self, target: int) -> None:
        self._target, self._owner, self._lock = target, os.getpid(), allocate_lock()

    def __call__(self, *values: object) -> None:
        """Send a reply. If the calling process was forked by user code and returned from it, end it instead."""
        if os.getpid() != self._owner:
            os._exit(0)
        line = reply_line(values)
        with self._lock:
            write_all(self._target, line)
