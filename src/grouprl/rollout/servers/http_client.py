"""A JSON client for one HTTP server, and the kinds of errors that can occur."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import socket
import ssl
import threading
import time
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from grouprl.core.errors import GrouprlError, InputError, shortened

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ADDRESS = "it must look like http://127.0.0.1:8000 or http://[::1]:8000"
QUICK = 10.0
"""Time limit in seconds for calls that a working server answers immediately."""
BUSY = (408, 425, 429)
"""HTTP statuses after which a server or its proxy may take the same request later."""
LARGEST = 2**28
"""Size in bytes of the longest reply that is read."""


class ServerError(GrouprlError):
    """A server did not do what it was asked; another one may, or the same one later."""


class Gone(ServerError):
    """No server answers at the address, the connection broke, or the server says that it cannot continue."""


class Dropped(ServerError):
    """The server aborted the request but works: the request is sent again."""


class Late(ServerError):
    """The reply did not arrive in time."""


class Garbled(ServerError):
    """The reply is malformed."""


class Stale(ServerError):
    """The reply comes from other weights than the server was given."""


class Refused(ServerError):
    """The server says that the request is wrong: sending it again does not help; `rule` and `remedy` are those of an
    InputError.
    """

    def __init__(self, status: int, words: str, rule: str = "", remedy: str = "") -> None:
        self.status, self.rule, self.remedy = status, rule, remedy
        super().__init__(words)


class Wire:
    """Connections to one server; several threads may call at the same time. Proxies of the environment are not used.

    Args:
        address: a URL, including the path of the server's calls if it has one.
        key: the API key that the server requires; "" for none.
        key_env: the environment variable from which the key is read, for messages.

    Raises:
        InputError: the address is not valid.
    """

    def __init__(self, address: str, key: str = "", key_env: str = "") -> None:
        self.address, (self._host, self._port, self._path) = address.rstrip("/"), _place(address)
        self._tls = ssl.create_default_context() if address.startswith("https") else None
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key.strip()}"
        self._about_key = f". Its key is read from {key_env}, which is {'set' if key else 'not set'}" if key_env else ""
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[http.client.HTTPConnection] = set()

    def get(self, path: str, seconds: float = QUICK) -> object:
        """Send a GET request for `path` and return the reply; see `post`."""
        return self._once("GET", path, None, seconds, self._made())

    def post(self, path: str, body: object = None, seconds: float = QUICK) -> object:
        """Send `body` on a connection of its own and return the reply; nothing is sent twice.

        Raises:
            Gone, Late, Garbled: the server cannot be used.
            Refused: the server understood the request and refuses it.
        """
        return self._once("POST", path, body, seconds, self._made())

    def call(self, path: str, body: object, seconds: float) -> None:
        """Post a request whose reply is text that is ignored; see `post`."""
        with contextlib.suppress(Garbled):
            self.post(path, body, seconds)

    def request(self, path: str, body: object, seconds: float) -> object:
        """Post a request that may be sent twice, on an open connection if there is one; see `post`."""
        with self._lock:
            kept = self._idle.pop() if self._idle else None
        if kept is not None:
            try:
                return self._once("POST", path, body, seconds, kept)
            except Gone:  # servers close idle connections
                pass
        return self._once("POST", path, body, seconds, self._made())

    def cut(self) -> None:
        """Close the connections in use: a server aborts the work for a client that has disconnected."""
        with self._lock:
            busy = list(self._busy)
        for connection in busy:
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _made(self) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port)

    def _once(
        self, method: str, path: str, body: object, seconds: float, connection: http.client.HTTPConnection
    ) -> object:
        with self._lock:
            self._busy.add(connection)
        whole = False
        try:
            status, content = self._exchange(method, path, body, seconds, connection)
            whole = True
        except TimeoutError:
            raise Late(f"{self.address}{path} has not answered for {seconds:g} seconds") from None
        except (OSError, http.client.HTTPException) as error:
            raise Gone(f"{self.address}{path} does not answer: {type(error).__name__}: {error}") from None
        finally:
            with self._lock:
                self._busy.discard(connection)
                if whole and connection.sock is not None:
                    self._idle.append(connection)
                else:
                    connection.close()
        return self._read(path, status, content)

    def _exchange(
        self, method: str, path: str, body: object, seconds: float, connection: http.client.HTTPConnection
    ) -> tuple[int, bytes]:
        until = time.monotonic() + seconds
        connection.timeout = seconds
        if connection.sock is None:
            _open(connection)
        connection.sock.settimeout(seconds)
        connection.response_class = partial(_response, until)  # type: ignore[assignment]
        sent = b"" if body is None else json.dumps(body).encode()
        connection.request(method, self._path + path, sent, self._headers)
        answer = connection.getresponse()
        known = answer.length is not None and answer.length <= LARGEST
        content = answer.read() if known else answer.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise Garbled(f"{self.address}{path} answers with more than {LARGEST} bytes")
        elsewhere = answer.getheader("location") if 300 <= answer.status < 400 else None
        return answer.status, content if elsewhere is None else f"it sends to {elsewhere}".encode()

    def _read(self, path: str, status: int, content: bytes) -> object:
        if status >= 500:
            raise Gone(f"{self.address}{path} answers with status {status}: {_words(content)}")
        if status in BUSY:
            raise Dropped(f"{self.address}{path} answers with status {status}: {_words(content)}")
        if status == 401:
            raise Refused(status, f"{self.address}{path} refuses with status 401: {_words(content)}{self._about_key}")
        if status != 200:
            raise Refused(status, f"{self.address}{path} refuses with status {status}: {_words(content)}")
        try:
            return json.loads(content) if content else None
        except (ValueError, RecursionError):
            raise Garbled(f"{self.address}{path} answers with what is no JSON: {shortened(content)}") from None


def _place(address: str) -> tuple[str, int | None, str]:
    """Return the host, port and path of an address."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"the address {address!r}: {error}", ADDRESS) from None
    if parts.scheme not in ("http", "https") or not host or any(each.isspace() for each in address):
        raise InputError(f"the address {address!r}", ADDRESS)
    if parts.username is not None or parts.query or parts.fragment:
        raise InputError(f"the address {address!r}", "it may only have a host, a port and a path", "Leave out the rest")
    path = parts.path.rstrip("/")
    if path.endswith("/v1"):
        raise InputError(f"the address {address!r}", "calls of servers are not all below /v1", "Leave out the /v1")
    return host, port, path


def _open(connection: http.client.HTTPConnection) -> None:
    """Connect, and disable the delay of small requests."""
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class _Until(io.RawIOBase):
    """Reader of a socket with one deadline for the whole reply: a server that sends a byte now and then is late as
    well.
    """

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock, self._raw, self._until = sock, sock.makefile("rb", buffering=0), until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _response(
    until: float, sock: socket.socket, debuglevel: int = 0, method: str | None = None
) -> http.client.HTTPResponse:
    """Return a reply that has to be read before a deadline."""
    answer = http.client.HTTPResponse(sock, debuglevel, method)
    answer.fp.close()
    answer.fp = io.BufferedReader(_Until(sock, until))
    return answer


def _words(content: bytes) -> str:
    """Return a server's error message without its JSON wrapping."""
    try:
        told = json.loads(content)
        told = told.get("error", told) if isinstance(told, dict) else told
        told = told.get("message", told) if isinstance(told, dict) else told
    except (ValueError, RecursionError):
        told = content.decode(errors="replace")
    text = told if isinstance(told, str) else json.dumps(told)
    return shortened(text.strip(), 400)
