"""A time limit for user code that cannot run in its own process: a module, or the constructor of a class."""

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
"""Seconds that the constructor of a user's class may take."""
IMPORTING = 60.0
"""Seconds that the import of a user's module may take, unless an environment variable sets another limit."""
VARIABLE = "GROUPRL_IMPORT_SECONDS"
LOOKS = 4
"""Number of times that a `CallClock` looks at a call before its time is up."""


class TooLong(BaseException):
    """The time is up; not an Exception, so that the code that hangs does not catch it by accident."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise TooLong in the block after `seconds`, or earlier if an enclosing alarm ends earlier.

    There is no limit with 0 seconds, or where no alarm can be set (in another thread, on Windows).
    """
    if not _can_ring(seconds):
        yield
        return
    (around, every), begun = signal.getitimer(signal.ITIMER_REAL), time.monotonic()
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
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, around - (time.monotonic() - begun)), every)


class CallClock:
    """A limit of time for each of many short calls: `with clock.running(): …`, and `with clock: …` around each.

    A timer looks now and then at how long the present call has taken, so that a call may take a little more than
    `seconds`. Setting an alarm for each call would take longer than a step of a small environment.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._begun = 0.0
        """Beginning of the call under way, in seconds of the monotonic clock; 0: there is none."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the limit hold in the block, unless an alarm is set already, or none can be (see `alarm`)."""
        if not _can_ring(self.seconds) or signal.getitimer(signal.ITIMER_REAL)[0]:
            yield
            return
        before = signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, self.seconds / LOOKS, self.seconds / LOOKS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _look(self, number: int, frame: object) -> None:
        if self._begun and time.monotonic() - self._begun >= self.seconds:
            self._begun = 0.0
            raise TooLong

    def __enter__(self) -> None:
        self._begun = time.monotonic()

    def __exit__(self, *raised: object) -> None:
        self._begun = 0.0


def _can_ring(seconds: float) -> bool:
    """Return whether there is a limit, and an alarm can be set for it here."""
    in_main = threading.current_thread() is threading.main_thread()
    return bool(seconds) and in_main and hasattr(signal, "setitimer")


def reached(late: TooLong) -> str:
    """Return ", at FILE:LINE", the line at which the time was up; "" if it is unknown."""
    frames = [each for each in traceback.extract_tb(late.__traceback__) if each.filename != __file__]
    return f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


@contextmanager
def imported_in_time(where: str) -> Iterator[None]:
    """Refuse the module or file `where` if the block, which imports it, does not end in time.

    Raises:
        InputError: the import takes too long; the message names the line that it had reached.
    """
    seconds = seconds_to_import()
    try:
        with alarm(seconds):
            yield
    except TooLong as late:
        raise InputError(
            f"'{where}' is still being imported after {seconds:g} seconds{reached(late)}",
            "importing a module must come to an end",
            f"Move code that waits or loads into a function, or give it more time: environment variable {VARIABLE}",
        ) from None


def seconds_to_import() -> float:
    """Return the number of seconds that an import may take; 0 for no limit.

    Raises:
        InputError: the environment variable is not a valid number of seconds.
    """
    given = os.environ.get(VARIABLE, str(IMPORTING))
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise InputError(
            f"the environment variable {VARIABLE} is '{given}'", "it must be a number of seconds, or 0 for no limit"
        )
    return seconds
