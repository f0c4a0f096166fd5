"""The output of a program that runs in a thread of this process, separated from the output of other threads."""

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
    """The end of the printed text, at most `LONGEST_HEARD` characters."""

    def __init__(self) -> None:
        self._text = ""

    @property
    def text(self) -> str:
        """The end of the printed text, without surrounding white space."""
        return self._text.strip()

    def add(self, text: str) -> None:
        """Add printed text."""
        self._text = (self._text + text)[-LONGEST_HEARD:]


_HEARD: ContextVar[PrintedText | None] = ContextVar("_HEARD", default=None)
_lock = threading.Lock()
_listening = 0


class _Tee:
    """A stream that also passes printed text to the listener of the printing thread."""

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
    """Record the output of this thread, and of work that it sends to other threads by `asyncio.to_thread`.

    The output is still printed. Threads that a program starts by itself are not recorded.
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
    """Replace the streams of this process by recording ones while at least one program is recorded."""
    global _listening
    with _lock:
        _listening += more
        for name in STREAMS:
            stream = getattr(sys, name)
            if _listening and stream is not None and not isinstance(stream, _Tee):
                setattr(sys, name, _Tee(stream))
            elif not _listening and isinstance(stream, _Tee):
                setattr(sys, name, stream.stream)
