"""HTTP exchanges with one server, each with one deadline and a limit of size; redirects are not followed."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import ssl
import threading
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

import anyio
import httpx2

IDLE_SECONDS = 4.0
"""Seconds that an idle connection is kept: servers close theirs after five and more."""


class HttpError(Exception):
    """The exchange broke off: the server cannot be reached, closed the connection, or does not speak HTTP."""


class HttpLate(HttpError):
    """The reply was not complete at the deadline."""


class HttpTooLong(HttpError):
    """The reply is longer than it may be."""


@dataclass(frozen=True)
class HttpReply:
    """A reply of any status."""

    status: int
    headers: Mapping[str, str]
    """Headers by name; upper and lower case are the same."""
    content: bytes


class HttpClient:
    """Exchanges with one server, from several threads at the same time.

    They run in an event loop of their own, where a deadline also ends a slow name lookup, a TLS handshake that hangs,
    and a server that sends a byte now and then: the time limits of a blocking socket hold for one byte each.

    Args:
        address: the URL of the server, including the path of its calls if it has one.
        headers: headers of every request.
        proxies: whether to use the proxies that the environment names.
        keep: whether to keep idle connections for later exchanges.

    Raises:
        HttpError: the address is not valid.
    """

    def __init__(self, address: str, headers: Mapping[str, str], *, proxies: bool = False, keep: bool = False) -> None:
        # Reading this machine's certificates takes 0.1 s; without TLS there is nothing to verify with them.
        verify = ssl.create_default_context() if address.startswith("https") else False
        idle = None if keep else 0
        limits = httpx2.Limits(max_keepalive_connections=idle, max_connections=None, keepalive_expiry=IDLE_SECONDS)
        # A compressed reply could be small on the wire and endless in memory.
        sent = {"Content-Type": "application/json", "Accept-Encoding": "identity", **headers}
        try:
            self._client = httpx2.AsyncClient(
                base_url=address, headers=sent, verify=verify, trust_env=proxies, timeout=None, limits=limits
            )
        except httpx2.InvalidURL as error:
            raise HttpError(str(error)) from None
        self._going: set[Future[HttpReply]] = set()

    def exchange(self, method: str, path: str, body: object, seconds: float, most: int) -> HttpReply:
        """Send a request, once, and return its reply; `body` is sent as JSON, None as no content.

        Raises:
            HttpError: the exchange broke off, also by `cut`.
            HttpLate: the reply was not complete within `seconds`.
            HttpTooLong: the reply has more than `most` bytes.
        """
        content = b"" if body is None else json.dumps(body).encode()
        work = asyncio.run_coroutine_threadsafe(self._reply(method, path, content, seconds, most), _loop(os.getpid()))
        self._going.add(work)
        try:
            return work.result()
        except CancelledError:
            raise HttpError("the connection was cut") from None
        finally:
            work.cancel()  # only an exchange whose caller was interrupted is still in progress
            self._going.discard(work)

    def cut(self) -> None:
        """End the exchanges in progress: a server aborts the work for a client that has disconnected."""
        for work in list(self._going):
            work.cancel()

    def close(self) -> None:
        """Close the idle connections."""
        asyncio.run_coroutine_threadsafe(self._client.aclose(), _loop(os.getpid())).result()

    async def _reply(self, method: str, path: str, content: bytes, seconds: float, most: int) -> HttpReply:
        found = bytearray()
        try:
            with anyio.fail_after(seconds):
                async with self._client.stream(method, path, content=content) as reply:
                    async for piece in reply.aiter_raw():
                        found += piece
                        if len(found) > most:
                            raise HttpTooLong(f"more than {most} bytes")
                    return HttpReply(reply.status_code, reply.headers, bytes(found))
        except TimeoutError:
            raise HttpLate(f"no reply within {seconds:g} seconds") from None
        except (httpx2.HTTPError, OSError) as error:
            raise HttpError(_cause(error)) from None


@functools.cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """Return the event loop of all exchanges of a process; a fork does not inherit the thread that runs it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="http", daemon=True).start()
    return loop


def _cause(error: BaseException) -> str:
    """Describe an error by the one that it comes from: "connection refused" rather than "all attempts failed"."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return f"{type(error).__name__}: {error}"
