"""A clock for code that cannot be given a process of its own: a module of the user's, the constructor of a class."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from grouprl.core.errors import InputError

MAKING = 60.0
"""Seconds that the constructor of a class of the user's may take."""
IMPORTING = 60.0
"""Seconds that a module of the user's may take to be imported, unless the environment says otherwise."""
VARIABLE = "GROUPRL_IMPORT_SECONDS"


class TooLong(BaseException):
    """The time is over; no Exception, so that the code that hangs does not catch it by accident."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise TooLong in the block after `seconds`, or when the alarm around it rings, if that is earlier.

    Where no alarm can be set (another thread, Windows), wait; likewise with 0 seconds.
    """
    if not seconds or threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    around, begun = signal.getitimer(signal.ITIMER_REAL)[0], time.monotonic()
    if 0 < around <= seconds:
        yield
        return

    def ring(number: int, frame: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if around:
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, around - (time.monotonic() - begun)))


@contextmanager
def imported_in_time(where: str) -> Iterator[None]:
    """Refuse the module or file `where` if the block that imports it does not end in time.

    Raises:
        InputError: it takes too long; the message says at which line it was.
    """
    seconds = seconds_to_import()
    try:
        with alarm(seconds):
            yield
    except TooLong as late:
        frames = [each for each in traceback.extract_tb(late.__traceback__) if each.filename != __file__]
        place = f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        raise InputError(
            f"'{where}' is still being imported after {seconds:g} seconds{place}",
            "what a module does when it is imported comes to an end",
            f"Move what waits or loads into a function; or allow it more time with the environment variable {VARIABLE}",
        ) from None


def seconds_to_import() -> float:
    """Return how long an import may take; 0 is without end.

    Raises:
        InputError: the environment variable is no such number.
    """
    given = os.environ.get(VARIABLE, str(IMPORTING))
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise InputError(f"the environment variable {VARIABLE} is '{given}'", "it is a number of seconds, 0 for no end")
    return seconds
