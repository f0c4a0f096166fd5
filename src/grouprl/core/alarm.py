"""A clock for code that cannot be given a process of its own, such as the constructor of a class of the user."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TooLong(BaseException):
    """The time is over; no Exception, so that the code that hangs does not catch it by accident."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise TooLong in the block after `seconds`; where no alarm can be set (another thread, Windows), wait."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
