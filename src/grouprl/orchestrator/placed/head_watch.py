"""Whether Ray's head still answers: Ray itself waits for it in silence, and then ends whoever asked without a word."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable

from grouprl.core.errors import RunError

PATIENCE = 20.0
"""Seconds without an answer after which the head is gone; one that is started again takes less."""
GRACE = 30.0
"""Seconds in which the run then has to end by itself, before it is ended."""
BEAT = 1.0
RUN_FAILED = 3
"""The exit code of a run that failed."""
RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Ray ends a process that has not heard of the head for so many seconds."""


class HeadWatch:
    """Watches the head at `address` in a thread, from construction to `close`.

    `reached` says whether somebody answers there; `ended` ends the process where the run does not end by itself, as it
    may be waiting in Ray for what never comes.
    """

    def __init__(
        self,
        address: str,
        *,
        reached: Callable[[str], bool] | None = None,
        ended: Callable[[str], None] | None = None,
        patience: float = PATIENCE,
        grace: float = GRACE,
        beat: float = BEAT,
    ) -> None:
        self.address, self.gone = address, ""
        self._reached, self._ended = reached or answers, ended or end_process
        self._patience, self._grace, self._beat = patience, grace, beat
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="head of Ray", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise RunError once the head is gone."""
        if self.gone:
            raise RunError(self.gone)

    def close(self) -> None:
        """Watch no longer; may be called twice."""
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
        self.gone = (
            f"the head of Ray at {self.address} is gone: it has not answered for {self._patience:g} s. What is on disk "
            "is intact: start Ray again and continue with --resume, on this cluster or another (--set cluster.ray=…)"
        )
        if not self._closed.wait(self._grace):
            self._ended(self.gone)


def answers(address: str) -> bool:
    """Whether somebody takes a connection at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=BEAT).close()
    except OSError:
        return False
    return True


def end_process(why: str) -> None:
    """End this process at once, in words."""
    sys.stderr.write(f"error: {why}\n")
    sys.stderr.flush()
    os._exit(RUN_FAILED)
