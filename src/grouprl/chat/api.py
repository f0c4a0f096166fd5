"""What a protocol over HTTP is here: how its JSON becomes a `ChatRequest`, and how completions become its JSON.

There is one handler for all of them (`grouprl.chat.server`), and one request; a protocol only translates.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar

from grouprl.chat.refusal import Refusal
from grouprl.chat.reply import Completion
from grouprl.chat.request import ChatRequest, read_object
from grouprl.core.json_types import JsonObject

Event = JsonObject
"""An event of a stream, as JSON."""


class EventStream(ABC):
    """The events of one streamed answer."""

    def begin(self) -> Iterator[Event]:
        """Yield what comes before any text."""
        return iter(())

    @abstractmethod
    def piece(self, index: int, text: str, thinking: bool = False) -> Iterator[Event]:
        """Yield more text of answer number `index`, or of the `thinking` in front of it."""

    @abstractmethod
    def end(self, completion: Completion) -> Iterator[Event]:
        """Yield what comes when all is sampled; answers that may hold tool calls come whole, here."""

    @abstractmethod
    def refuse(self, error: Refusal) -> Iterator[Event]:
        """Yield what ends a stream that failed."""


class Api(ABC):
    """A protocol."""

    path: ClassVar[str]
    """Where its requests are sent."""
    names: ClassVar[Mapping[str, str]] = {}
    """What it calls parameters of `ChatRequest` that it names otherwise."""
    end: ClassVar[str] = ""
    """Text behind a stream's last event."""

    def read(self, body: bytes) -> ChatRequest:
        """Return the request in a body; raises Refusal."""
        return self.request(read_object(body))

    @abstractmethod
    def request(self, given: JsonObject) -> ChatRequest:
        """Return the request in an object; raises Refusal."""

    @abstractmethod
    def whole(self, request: ChatRequest, completion: Completion, model: str) -> JsonObject:
        """Return an answer that is not streamed."""

    @abstractmethod
    def stream(self, request: ChatRequest, model: str) -> EventStream:
        """Return the events of an answer that is streamed."""

    @abstractmethod
    def error(self, error: Refusal) -> JsonObject:
        """Return the body of a refusal, whose parameter bears this protocol's name."""

    def refusal(self, error: Refusal) -> dict[str, object]:
        """Return the body of a refusal."""
        return self.error(error.renamed(self.names))

    def written(self, event: Event) -> str:
        """Return an event as a stream has it."""
        return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
