"""A request that cannot be served, as clients of the protocols expect to be told."""

from __future__ import annotations

import re
from collections.abc import Mapping

from grouprl.core.json_types import JsonObject

LONGEST = 600
"""Characters of a message: what a client sent is never sent back whole."""


class Refusal(Exception):
    """A request that cannot be served: the HTTP status, the message and which parameter it is about."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        message = message if len(message) <= LONGEST else f"{message[: LONGEST - 100]}…{message[-99:]}"
        super().__init__(message)
        self.message, self.param, self.status = message, None if param is None else param[:64], status

    def renamed(self, names: Mapping[str, str]) -> Refusal:
        """Return the same with the names that another protocol has for parameters."""
        message = self.message
        for ours, theirs in names.items():
            message = re.sub(rf"(?<![\w.]){ours}(?= = |' is missing)", theirs, message)
        return Refusal(message, names.get(self.param or "", self.param), self.status)

    def body(self) -> JsonObject:
        """Return the error as clients of OpenAI's protocols expect it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": None}}
