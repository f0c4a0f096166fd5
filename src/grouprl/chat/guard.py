"""The guard before the application: it limits the senders of requests, and the size and duration of their bodies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from grouprl.chat.limits import Access, ChatLimits, key_of
from grouprl.chat.refusal import Refusal
from grouprl.core.json_types import JsonObject

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
Told = Callable[[str, Refusal], JsonObject]
"""Function from (path, refusal) to the JSON body of the refusal."""
Heard = Callable[[str, Refusal], None]
"""Function that is notified of (API key, refusal)."""
PATIENCE = 8
"""A body of up to this many times the limit is read and discarded, so that the client sees the refusal; a larger one
is not read."""


class Guard:
    """An ASGI application around another one, which receives only accepted requests, each with its whole body."""

    def __init__(self, app: App, limits: ChatLimits, access: Access, told: Told, heard: Heard) -> None:
        self.app, self.limits, self.access, self.told, self.heard = app, limits, access, told, heard
        self.held = 0
        """Bytes of the bodies of all requests that are being read or answered."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request of a connection."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        body = _Body(self, receive)
        try:
            self.access.check(headers)
            whole = await body.read(headers)
            await self.app(scope, _replayed(whole, receive), send)
        except Refusal as error:
            self.heard(key_of(headers), error)
            await _refuse(error.status, self.told(scope["path"], error), send)
        except _ClientGone:
            pass
        finally:
            self.held -= body.held


class _ClientGone(Exception):
    """The client disconnected before its body was complete."""


class _Body:
    """The body of one request, as it arrives."""

    def __init__(self, guard: Guard, receive: Receive) -> None:
        self.guard, self.limits, self.receive = guard, guard.limits, receive
        self.held = 0

    async def read(self, headers: dict[str, str]) -> bytes:
        """Return the whole body; raise Refusal if it is too large or too slow."""
        declared = int(headers.get("content-length") or 0)
        hopeless = declared > PATIENCE * self.limits.body_bytes
        if hopeless or (declared > self.limits.body_bytes and "expect" in headers):
            raise self._too_large()
        try:
            return await asyncio.wait_for(self._collect(), self.limits.body_seconds)
        except TimeoutError:
            rule = f"within {self.limits.body_seconds:g} seconds"
            raise Refusal(f"The body did not arrive {rule}", status=408) from None

    async def _collect(self) -> bytes:
        parts, size, more = list[bytes](), 0, True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise _ClientGone
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if size > PATIENCE * self.limits.body_bytes:
                raise self._too_large()
            if size <= self.limits.body_bytes:
                self._hold(len(part))
                parts.append(part)
            else:
                # Too large already: the rest is read for the client to see the refusal, and not kept.
                parts.clear()
        if size > self.limits.body_bytes:
            raise self._too_large()
        return b"".join(parts)

    def _hold(self, size: int) -> None:
        if self.guard.held + size > self.limits.bodies_bytes:
            raise Refusal("The server already holds as many bytes of requests as it may; try again later", status=503)
        self.guard.held += size
        self.held += size

    def _too_large(self) -> Refusal:
        return Refusal(f"The body is too large; at most {self.limits.body_bytes} bytes", status=413)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns the body first, and then the further events of the connection."""
    left = [body]

    async def given() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return given


async def _refuse(status: int, told: JsonObject, send: Send) -> None:
    """Send an error and close the connection without reading the rest of the request."""
    body = json.dumps(told).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *([(b"www-authenticate", b"Bearer")] if status == 401 else []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
