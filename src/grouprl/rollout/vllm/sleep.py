"""vLLM's sleep mode: which servers sleep, on the accelerator that the trainer computes on meanwhile."""

from __future__ import annotations

from grouprl.rollout.servers.server_pool import Server

LEVEL = 2
"""vLLM's: weights and cache are discarded. The weights come anew, so nothing is kept in the machine's memory."""


class SleepMode:
    """Servers that sleep; `seconds` is how long one may take to do so."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._asleep: dict[Server, int] = {}
        """Servers that sleep, and how often each had been replaced then: a new one is awake."""

    def begin(self, server: Server) -> None:
        """Have a server finish its requests and free its accelerator's memory, of weights and cache both."""
        server.wire.post(f"/sleep?level={LEVEL}&mode=wait", seconds=self._seconds)
        self._asleep[server] = server.restarts

    def lasts(self, server: Server) -> bool:
        """Whether a server sleeps."""
        return self._asleep.get(server) == server.restarts

    def ended(self, server: Server) -> None:
        """Take note that a server has been woken."""
        self._asleep.pop(server, None)
