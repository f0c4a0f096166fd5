"""The interface of a protocol over HTTP: it turns its JSON into a `ChatRequest`, and completions into its JSON.

All protocols share one handler (`grouprl.chat.server`) and one kind of request; a protocol only translates.
Answers are plain dictionaries: the types of openai and anthropic come with whole clients, which a server would need to
install and to import for two thirds of a second; tests hold the answers against the openai client instead.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar

from grouprl.chat.refusal import Refusal, Unsupported
from grouprl.chat.reply import Completion
from grouprl.chat.request import ChatRequest, read_object
from grouprl.core.json_types import JsonObject

MOST_IGNORED = 64
"""Parameters of one request that are ignored at most."""
Event = JsonObject
"""An event of a stream, as JSON."""


class EventStream(ABC):
    """The events of one streamed answer."""

    def begin(self) -> Iterator[Event]:
        """Yield the events before any text."""
        return iter(())

    @abstractmethod
    def piece(self, index: int, text: str, thinking: bool = False) -> Iterator[Event]:
        """Yield the events for further text of answer number `index`, or of the `thinking` before it."""

    @abstractmethod
    def end(self, completion: Completion) -> Iterator[Event]:
        """Yield the last events; an answer that may hold tool calls is sent here as a whole."""

    @abstractmethod
    def refuse(self, error: Refusal) -> Iterator[Event]:
        """Yield the events that end a failed stream."""


class Api(ABC):
    """A protocol that clients speak at one path of the server."""

    path: ClassVar[str]
    """Path to which its requests are sent."""
    names: ClassVar[Mapping[str, str]] = {}
    """Its own names of parameters of `ChatRequest`, if they differ."""
    end: ClassVar[str] = ""
    """Text after the last event of a stream."""

    def read(self, body: bytes, ignoring: bool = False) -> ChatRequest:
        """Return the request in a body, with `ignoring` without parameters that are not supported; raise Refusal for an
        invalid one.
        """
        return self.accepted(read_object(body), ignoring)

    def accepted(self, given: JsonObject, ignoring: bool) -> ChatRequest:
        """Return the request in an object, as `read` does."""
        for _ in range(MOST_IGNORED if ignoring else 0):
            try:
                return self.request(given)
            except Unsupported as error:
                given = {name: value for name, value in given.items() if name != error.given}
        return self.request(given)

    @abstractmethod
    def request(self, given: JsonObject) -> ChatRequest:
        """Return the request in an object; raise Refusal for an invalid one."""

    @abstractmethod
    def whole(self, request: ChatRequest, completion: Completion, model: str) -> JsonObject:
        """Return the JSON of an answer that is not streamed."""

    @abstractmethod
    def stream(self, request: ChatRequest, model: str) -> EventStream:
        """Return the events of a streamed answer."""

    @abstractmethod
    def error(self, error: Refusal) -> JsonObject:
        """Return the body of a refusal whose parameter already has this protocol's name."""

    def refusal(self, error: Refusal) -> dict[str, object]:
        """Return the body of a refusal, with parameters as this protocol names them."""
        return self.error(error.renamed(self.names))

    def written(self, event: Event) -> str:
        """Return the text of an event in a stream."""
        return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
