"""Ctrl-C asks the run to end after this step, and a second time ends it at once; SIGTERM does so within seconds."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

GRACE = 5.0
"""Seconds after SIGTERM within which a step may end by itself: its sender usually kills some ten seconds later."""


class Stopped(Exception):
    """Work that can be repeated was left undone, because the run is to stop."""


class Interrupt:
    """While active, SIGINT and SIGTERM set `requested`; a second signal, or `GRACE` after SIGTERM,
    KeyboardInterrupt."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self.requested = False
        self._announce = announce
        self._before: dict[int, Any] = {}
        self._last_call: threading.Timer | None = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._last_call is not None:
            self._last_call.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def give_way(self) -> None:
        """Raise Stopped if the run is to stop; for work that is repeated when the run continues."""
        if self.requested:
            raise Stopped

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        if number == signal.SIGTERM:
            self._announce(
                f"Stopping after this step, or in {GRACE:g} seconds; what is not in a checkpoint is lost then."
            )
            self._last_call = threading.Timer(GRACE, os.kill, (os.getpid(), signal.SIGTERM))
            self._last_call.daemon = True
            self._last_call.start()
        else:
            self._announce(
                "Stopping after this step; a checkpoint will be written. Press Ctrl-C again to stop at once."
            )
