"""The limits of a completion server, and the clients that it serves."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from grouprl.chat.refusal import Refusal
from grouprl.core.errors import shortened

LONGEST_KEY = 256
HOST = re.compile(r"(?:\[(?P<address>[^]]+)]|(?P<name>[^][:]*))(?::\d*)?")
"""A Host header: an IPv6 address in brackets, or a name, with an optional port."""


@dataclass(frozen=True)
class ChatLimits:
    """Limits on the size and duration of clients' requests; sizes in bytes, times in seconds."""

    body_bytes: int = 4 * 2**20
    """Largest size of one request's body, in bytes."""
    bodies_bytes: int = 256 * 2**20
    """Largest total size of the bodies of all requests that are being read or answered, in bytes."""
    header_seconds: float = 10.0
    """Seconds from the connection, or from the first byte of a head, to the end of the head."""
    body_seconds: float = 30.0
    """Seconds for the whole body."""
    idle_seconds: float = 30.0
    """Seconds for which a connection may be idle between two requests."""
    stall_seconds: float = 30.0
    """Seconds for which a client may leave its answer unread."""
    answer_seconds: float | None = 600.0
    """Seconds for an answer, including the time in the queue; None for no limit."""
    connections: int = 4096
    """Largest number of connections at the same time."""


@dataclass(frozen=True)
class Access:
    """The clients that may send requests: `keys` are the accepted API keys (empty: any), `hosts` the server's names.

    A web page can send requests to this machine under a host name that it controls, but not under an IP address or
    `localhost`, and its browser states the page's origin. Both are checked, so that no foreign page can read answers.
    """

    keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise Refusal for a request from a foreign page, to a foreign host name, or without an accepted key."""
        host = headers.get("host", "")
        if not self._goes_by(host):
            remedy = "Use its address, localhost, or a name given with --allow-host"
            raise Refusal(f"{shortened(host, 80)} is not a name of this server. {remedy}", "Host", 403)
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        foreign = origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower())
        if foreign or site == "cross-site":
            raise Refusal("Pages of other sites may not send requests to this server", "Origin", 403)
        self._check_key(key_of(headers))

    def _check_key(self, key: str) -> None:
        if len(key) > LONGEST_KEY:
            raise Refusal(f"The API key has {len(key)} characters; at most {LONGEST_KEY}", "Authorization", 401)
        fits = [hmac.compare_digest(key.encode(), each.encode()) for each in self.keys]
        if self.keys and not any(fits):
            raise Refusal("The API key is not one of this server's", "Authorization", 401)

    def _goes_by(self, host: str) -> bool:
        name = host_name(host)
        if name in ("localhost", *map(str.lower, self.hosts)):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def host_name(host: str) -> str:
    """Return the name in a Host header, without the port: 'Localhost:80' is 'localhost', '[::1]:80' is '::1'.

    A header of another form, such as '[::1].example.org', is returned as it is, and matches no name.
    """
    found = HOST.fullmatch(host.strip().lower())
    return host if found is None else (found["address"] or found["name"].rstrip("."))


def key_of(headers: Mapping[str, str]) -> str:
    """Return the API key of a request, in OpenAI's or Anthropic's header; '' without one."""
    kind, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "").strip()
