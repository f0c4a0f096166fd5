"""Connections with time limits for half-sent heads, idle clients and unread answers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from grouprl.chat.limits import ChatLimits
from grouprl.core.errors import MissingExtra

LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
FULL = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def make_protocol(limits: ChatLimits) -> object:
    """Return uvicorn's HTTP protocol with these limits.

    Raises:
        MissingExtra: if uvicorn is not installed.
    """
    try:
        from uvicorn.protocols.http.h11_impl import H11Protocol
    except ImportError as error:
        raise MissingExtra("uvicorn", "serve", "A server of completions") from error
    every = min(1.0, limits.header_seconds / 4, limits.stall_seconds / 4)

    class Bounded(H11Protocol):
        """A connection that regularly checks its state, and ends if the state lasts too long."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.since: dict[Hashable, float] = {}
            self.watch = self.loop.call_later(every, self.look)
            if len(self.connections) > limits.connections:
                transport.write(FULL)
                transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            self.watch.cancel()
            super().connection_lost(exc)

        def look(self) -> None:
            """End the connection if a state has lasted too long; otherwise check again later."""
            now, states = self.loop.time(), self.states()
            self.since = {state: self.since.get(state, now) for state in states}
            if any(now - self.since[state] >= most for state, most in states.items()):
                self.end()
            else:
                self.watch = self.loop.call_later(every, self.look)

        def states(self) -> dict[Hashable, float]:
            """Return the current states of the connection, with their time limits in seconds."""
            found: dict[Hashable, float] = {}
            unread = self.transport.get_write_buffer_size()
            if unread:
                found["unread", unread] = limits.stall_seconds
            if self.transport.is_closing():
                found["closing"] = limits.stall_seconds
            elif self.cycle is not None and not self.cycle.response_complete:
                if limits.answer_seconds is not None:
                    found[id(self.cycle)] = limits.body_seconds + limits.answer_seconds + limits.stall_seconds
            elif self.conn.trailing_data[0] or self.cycle is None:
                found["head"] = limits.header_seconds
            return found

        def end(self) -> None:
            """Close the connection, with a message if the request never arrived."""
            if self.cycle is None and not self.transport.is_closing() and self.conn.trailing_data[0]:
                self.transport.write(LATE)
                self.transport.close()
                # Closing waits until the message is read; a client that never reads is cut off by the next looks.
                self.watch = self.loop.call_later(every, self.look)
            else:
                self.transport.abort()

    return Bounded
