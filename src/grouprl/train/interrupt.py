"""Ctrl-C: the first asks the run to end after this step, the second ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """While active, SIGINT and SIGTERM set `asked`; a second signal raises KeyboardInterrupt."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self.asked = False
        self._announce = announce
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._announce("Stopping after this step; a checkpoint will be written. Press Ctrl-C again to stop at once.")
