"""An interruption as Ctrl-C sends it, also where tests run in the background, in which shells ignore it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupted(seconds: float) -> Iterator[None]:
    """Send SIGINT to this process after `seconds`; it raises KeyboardInterrupt, whatever the process did with it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGINT, before)
