"""vLLM's sleep mode, in which servers free the accelerator for the trainer."""

from __future__ import annotations

from grouprl.rollout.servers.server_pool import Server

LEVEL = 2
"""vLLM's level of sleep: weights and cache are discarded. New weights follow, so nothing is kept in the machine's
memory.
"""


class SleepMode:
    """Sleep mode of servers; `seconds` is the time that one may take to fall asleep."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._asleep: dict[Server, int] = {}
        """Servers that are asleep, with how often each had been replaced at that time: a new one is awake."""

    def begin(self, server: Server) -> None:
        """Let a server finish its requests and free its accelerator's memory of both weights and cache."""
        server.wire.post(f"/sleep?level={LEVEL}&mode=wait", seconds=self._seconds)
        self._asleep[server] = server.restarts

    def lasts(self, server: Server) -> bool:
        """Return whether a server is asleep."""
        return self._asleep.get(server) == server.restarts

    def ended(self, server: Server) -> None:
        """Note that a server has been woken."""
        self._asleep.pop(server, None)
