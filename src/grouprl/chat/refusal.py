"""The refusal of a request that cannot be served, in the form that clients of the protocols expect."""

from __future__ import annotations

import re
from collections.abc import Mapping

from grouprl.core.json_types import JsonObject

LONGEST = 600
"""Largest number of characters of a message, so that a client's own text is never echoed whole."""


class Refusal(Exception):
    """A request cannot be served: the HTTP status, the message and the parameter that it concerns."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        message = message if len(message) <= LONGEST else f"{message[: LONGEST - 100]}…{message[-99:]}"
        super().__init__(message)
        self.message, self.param, self.status = message, None if param is None else param[:64], status

    def renamed(self, names: Mapping[str, str]) -> Refusal:
        """Return the refusal with another protocol's names of parameters."""
        message = self.message
        for ours, theirs in names.items():
            message = re.sub(rf"(?<![\w.]){ours}(?= = |' is missing)", theirs, message)
        return Refusal(message, names.get(self.param or "", self.param), self.status)

    def body(self) -> JsonObject:
        """Return the JSON error that clients of OpenAI's protocols expect."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": None}}


class Unsupported(Refusal):
    """A parameter, `given`, that is unknown or cannot be applied; a server may be told to ignore such parameters."""

    def __init__(self, message: str, given: str) -> None:
        super().__init__(message, given)
        self.given = given
