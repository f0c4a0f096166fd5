"""The limits of a server of completions, and whom it serves."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from grouprl.chat.refusal import Refusal
from grouprl.core.errors import shortened

LONGEST_KEY = 256


@dataclass(frozen=True)
class ChatLimits:
    """Bounds on what clients send and on how long they may take; sizes in bytes, times in seconds."""

    body_bytes: int = 4 * 2**20
    """Of one request's body."""
    bodies_bytes: int = 256 * 2**20
    """Of the bodies of all requests that are being read or answered."""
    header_seconds: float = 10.0
    """From the connection, or from a head's first byte, to the end of the head."""
    body_seconds: float = 30.0
    """For the whole body."""
    idle_seconds: float = 30.0
    """A connection may lie idle between two requests."""
    stall_seconds: float = 30.0
    """A client may leave its answer unread."""
    answer_seconds: float | None = 600.0
    """For an answer, the waiting included; None: as long as it takes."""
    connections: int = 4096
    """Open at the same time."""


@dataclass(frozen=True)
class Access:
    """Who may send requests: `keys` are the accepted API keys (none: any), `hosts` the names the server goes by.

    A page in a browser can send requests to this machine under a name of its own choosing, which an IP address and
    `localhost` are not; and it says where it comes from. Both are checked, so that no page reads what is served here.
    """

    keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise Refusal for a request by a foreign page, under a foreign name, or without an accepted key."""
        host = headers.get("host", "")
        if not self._goes_by(host):
            remedy = "Use its address, localhost, or a name given with --allow-host"
            raise Refusal(f"This server does not go by the name {shortened(host, 80)}. {remedy}", "Host", 403)
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
    """Return the name in a Host header, without the port: 'Localhost:80' is 'localhost', '[::1]:80' is '::1'."""
    name, closing, _ = host.strip().lower().partition("]")
    if closing:
        return name.removeprefix("[")
    name, _, port = name.partition(":")
    return name.rstrip(".") if port.isdigit() or not port else host


def key_of(headers: Mapping[str, str]) -> str:
    """Return the API key of a request, in the header of either provider's clients; '' without one."""
    kind, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "").strip()
