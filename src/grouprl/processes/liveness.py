"""Watching whether a peer still answers: a process that only waits for a message would never notice that the peer is
gone.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable

from grouprl.core.errors import RunError

BEAT = 1.0
"""Seconds that a connection attempt may take."""
RUN_FAILED = 3
"""The exit code of a run that failed."""


class PeerWatch:
    """A thread that checks whether `address` answers, from construction to `close`.

    After `patience` seconds without an answer, `gone` becomes `words`. `ended` ends this process `grace` seconds later
    if it has not ended by itself, because it may be waiting for a message that never comes. `reached` returns whether
    the address answers.
    """

    def __init__(
        self,
        address: str,
        words: str,
        patience: float,
        grace: float,
        *,
        reached: Callable[[str], bool] | None = None,
        ended: Callable[[str], None] | None = None,
        beat: float = BEAT,
    ) -> None:
        self.address, self.gone, self._words = address, "", words
        self._reached, self._ended = reached or answers, ended or end_process
        self._patience, self._grace, self._beat = patience, grace, beat
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"watch {address}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise RunError once the peer is gone."""
        if self.gone:
            raise RunError(self.gone)

    def close(self) -> None:
        """Stop watching; may be called twice."""
        self._closed.set()

    def _watch(self) -> None:
        heard = time.monotonic()
        while not self._closed.wait(self._beat):
            if self._reached(self.address):
                heard = time.monotonic()
            elif time.monotonic() - heard > self._patience:
                break
        else:
            return
        self.gone = self._words
        if not self._closed.wait(self._grace):
            self._ended(self.gone)


def answers(address: str) -> bool:
    """Return whether host:port accepts a connection."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=BEAT).close()
    except (OSError, ValueError):
        return False
    return True


def end_process(why: str) -> None:
    """End this process at once, with the reason on stderr."""
    sys.stderr.write(f"error: {why}\n")
    sys.stderr.flush()
    os._exit(RUN_FAILED)
