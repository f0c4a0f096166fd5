"""What a program prints that runs in a thread of this process, told apart from what others print."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

LONGEST_HEARD = 2000
STREAMS = ("stdout", "stderr")


class PrintedText:
    """The last characters that were printed, at most `LONGEST_HEARD`."""

    def __init__(self) -> None:
        self._text = ""

    @property
    def text(self) -> str:
        """What was printed last, without white space around it."""
        return self._text.strip()

    def add(self, text: str) -> None:
        """Take what is printed."""
        self._text = (self._text + text)[-LONGEST_HEARD:]


_HEARD: ContextVar[PrintedText | None] = ContextVar("_HEARD", default=None)
_lock = threading.Lock()
_listening = 0


class _Tee:
    """A stream that also tells the program of its thread what it prints."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        heard = _HEARD.get()
        if heard is not None:
            heard.add(text)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


@contextmanager
def overheard() -> Iterator[PrintedText]:
    """Listen to what this thread prints, and to what it does in other ones by `asyncio.to_thread`.

    It is printed all the same. Threads that a program starts by itself are not heard.
    """
    heard = PrintedText()
    mark = _HEARD.set(heard)
    _listen(1)
    try:
        yield heard
    finally:
        _listen(-1)
        _HEARD.reset(mark)


def _listen(more: int) -> None:
    """Let the streams of this process tell what is printed as long as a program is heard."""
    global _listening
    with _lock:
        _listening += more
        for name in STREAMS:
            stream = getattr(sys, name)
            if _listening and stream is not None and not isinstance(stream, _Tee):
                setattr(sys, name, _Tee(stream))
            elif not _listening and isinstance(stream, _Tee):
                setattr(sys, name, stream.stream)
