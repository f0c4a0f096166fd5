"""SIGINT and SIGTERM on the command line: the first unwinds the command, the second ends the process at once."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType

LOADING = "<frozen importlib._bootstrap>"
ONE_STROKE = 0.1
"""Seconds within which a second signal counts as a repetition: `timeout`, for instance, sends each signal twice."""
SHOW_CURSOR = b"\x1b[?25h"


class Listening:
    """While active, a first SIGINT or SIGTERM raises KeyboardInterrupt, a second ends the process.

    While modules are loaded, the first signal ends the process, too, because extensions written in C do not survive an
    exception there. After SIGINT the exit code is `interrupted`; after SIGTERM the process cleans up and then ends by
    that signal.
    """

    def __init__(self, interrupted: int) -> None:
        self._code = interrupted
        self._first: float | None = None
        self._terminated = False
        self._unraisable = sys.unraisablehook

    def __enter__(self) -> Listening:
        """Begin to handle signals; a signal that the process inherited as ignored stays ignored."""
        atexit.register(self._leave)  # the handler registered first is called last
        sys.unraisablehook = self._lost
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let any signal end the process at once, since only the exit itself is left to interrupt."""
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) == self._handle:
                signal.signal(number, lambda number, frame: self._end(number))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        codes = list(_running(frame))
        if any(code.co_filename == LOADING for code in codes):
            self._end(number)
        if Listening._lost.__code__ in codes:  # from which nothing can be raised either
            self._again()
            return
        if self._first is not None:
            if now - self._first > ONE_STROKE:
                self._end(number)
            return
        self._first = now
        self._terminated = number == signal.SIGTERM
        raise KeyboardInterrupt

    def _leave(self) -> None:
        if self._terminated:
            sys.stdout.flush()
            _end_by(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if os.isatty(1):
            os.write(1, SHOW_CURSOR)
        if number == signal.SIGTERM:
            _end_by(number)
        os.write(2, b"interrupted\n")
        os._exit(self._code)

    def _lost(self, given: sys.UnraisableHookArgs) -> None:
        """Raise the interruption again if it reached code that cannot be interrupted, such as a destructor."""
        if not issubclass(given.exc_type, KeyboardInterrupt):
            self._unraisable(given)
            return
        self._again()

    def _again(self) -> None:
        """Interrupt once more, a little later."""
        self._first = None
        again = threading.Timer(ONE_STROKE / 10, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()


def _running(frame: FrameType | None) -> Iterator[CodeType]:
    """Yield the code that a signal interrupted, and that of its callers."""
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def _end_by(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
