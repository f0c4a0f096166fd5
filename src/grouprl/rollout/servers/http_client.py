"""A JSON client for one HTTP server, and the kinds of errors that can occur."""

from __future__ import annotations

import contextlib
import json
from urllib.parse import urlsplit

from grouprl.core.api_key import checked_key, without_key
from grouprl.core.errors import GrouprlError, InputError, shortened
from grouprl.core.http_client import HttpClient, HttpError, HttpLate, HttpReply, HttpTooLong

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
        InputError: the address is not valid, or no header can hold the key.
    """

    def __init__(self, address: str, key: str = "", key_env: str = "") -> None:
        check_address(address)
        self.address = address.rstrip("/")
        self._key = checked_key(key.strip(), f"the API key in {key_env}" if key_env else "the API key")
        self._headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._about_key = f". Its key is read from {key_env}, which is {'set' if key else 'not set'}" if key_env else ""
        self._anew, self._kept = HttpClient(address, self._headers), HttpClient(address, self._headers, keep=True)

    def get(self, path: str, seconds: float = QUICK) -> object:
        """Send a GET request for `path` and return the reply; see `post`."""
        return self._exchanged(self._anew, "GET", path, None, seconds)

    def post(self, path: str, body: object = None, seconds: float = QUICK) -> object:
        """Send `body` on a new connection and return the reply.

        Raises:
            Gone, Late, Garbled: the server cannot be used.
            Refused: the server understood the request and refuses it.
        """
        return self._exchanged(self._anew, "POST", path, body, seconds)

    def call(self, path: str, body: object, seconds: float) -> None:
        """Post a request whose reply is text that is ignored; see `post`."""
        with contextlib.suppress(Garbled):
            self.post(path, body, seconds)

    def request(self, path: str, body: object, seconds: float) -> object:
        """Post a request on an open connection if there is one; see `post`.

        The server may just be closing that connection: such a request fails with Gone, and is sent again by the pool.
        """
        return self._exchanged(self._kept, "POST", path, body, seconds)

    def cut(self) -> None:
        """End the requests in progress: a server aborts the work for a client that has disconnected."""
        self._anew.cut()
        self._kept.cut()

    def close(self) -> None:
        """Close the idle connections."""
        self._kept.close()

    def _exchanged(self, client: HttpClient, method: str, path: str, body: object, seconds: float) -> object:
        try:
            return self._read(path, client.exchange(method, path, body, seconds, LARGEST))
        except HttpLate:
            raise Late(f"{self.address}{path} has not answered for {seconds:g} seconds") from None
        except HttpTooLong:
            raise Garbled(f"{self.address}{path} answers with more than {LARGEST} bytes") from None
        except HttpError as error:
            raise Gone(f"{self.address}{path} does not answer: {error}") from None

    def _read(self, path: str, reply: HttpReply) -> object:
        status, content = reply.status, reply.content
        if 300 <= status < 400 and "location" in reply.headers:
            content = f"it sends to {reply.headers['location']}".encode()
        if status != 200:
            content = without_key(content.decode(errors="replace"), self._key).encode()
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
            raise Garbled(
                f"{self.address}{path} answers with something that is not JSON: {shortened(content)}"
            ) from None


def check_address(address: str) -> None:
    """Raise InputError if an address is not that of a server."""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"the address {address!r}: {error}", ADDRESS) from None
    if parts.scheme not in ("http", "https") or not host or any(each.isspace() for each in address):
        raise InputError(f"the address {address!r}", ADDRESS)
    if parts.username is not None or parts.query or parts.fragment:
        raise InputError(f"the address {address!r}", "it may only have a host, a port and a path", "Leave out the rest")
    if parts.path.rstrip("/").endswith("/v1"):
        raise InputError(f"the address {address!r}", "calls of servers are not all below /v1", "Leave out the /v1")


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
