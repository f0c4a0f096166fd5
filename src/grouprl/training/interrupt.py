"""Signals: Ctrl-C ends the run after the current step, a second one at once, SIGTERM within seconds; so does a closed
terminal, after the step.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from types import FrameType, TracebackType

GRACE = 5.0
"""Seconds after SIGTERM within which a step may end by itself: its sender usually kills some ten seconds later."""
ONE_STROKE = 0.1
"""Seconds within which a second signal counts as a repetition: `timeout`, for instance, sends each signal twice."""
SAID: dict[int, str] = {
    signal.SIGINT: "Stopping after this step; a checkpoint will be written. Press Ctrl-C again to stop at once.",
    signal.SIGTERM: "Stopping after this step, or in {grace:g} seconds; what is not in a checkpoint is lost then.",
    signal.SIGHUP: "The terminal is closed: stopping after this step; a checkpoint will be written.",
}
OVER = b"\0"
"""Tells the thread that announces signals that no more will come; no signal has this number."""


class Stopped(Exception):
    """Repeatable work was left undone, because the run is to stop."""


class Interrupt:
    """While active, the first SIGINT, SIGTERM or SIGHUP sets `requested`.

    A second signal, or the end of `GRACE` after SIGTERM, raises KeyboardInterrupt.
    """

    def __init__(self, announce: Callable[[str], None]) -> None:
        self.requested = False
        self._announce = announce
        self._before: dict[int, signal._HANDLER] = {}
        self._first = 0.0
        self._heard: int | None = None
        self._teller: threading.Thread | None = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            reader, self._heard = os.pipe()
            self._teller = threading.Thread(target=self._tell, args=(reader,), name="interrupt", daemon=True)
            self._teller.start()
            for number in SAID:
                # A SIGHUP that is ignored (nohup) stays so.
                if number != signal.SIGHUP or signal.getsignal(number) is signal.SIG_DFL:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._teller is not None and self._heard is not None:
            with suppress(BrokenPipeError):  # it has announced a signal, and is done
                # Closing would not do: a process that the user's code forked has it open, too.
                os.write(self._heard, OVER)
            os.close(self._heard)
            self._teller.join()

    def give_way(self) -> None:
        """Raise Stopped if the run is to stop; for work that a resumed run repeats."""
        if self.requested:
            raise Stopped

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Note the signal. Nothing is printed here, because the interrupted code may itself be printing."""
        now = time.monotonic()
        if self.requested and now - self._first > ONE_STROKE:
            before = self._before[number]
            if callable(before):
                before(number, frame)
            raise KeyboardInterrupt
        if not self.requested and self._heard is not None:
            self.requested, self._first = True, now
            os.write(self._heard, bytes([number]))

    def _tell(self, reader: int) -> None:
        """Wait until the pipe gives a signal or the end; announce the signal's effect, and end the grace period."""
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            number = pipe.read(1)
            if number in (b"", OVER):
                return
            with suppress(OSError):  # the terminal is closed
                self._announce(SAID[number[0]].format(grace=GRACE))
            if number[0] == signal.SIGTERM and not wait([pipe.fileno()], GRACE):
                os.kill(os.getpid(), signal.SIGTERM)
