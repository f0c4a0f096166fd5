"""Anthropic's messages: /v1/messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import ClassVar

from grouprl.chat.api import Api, Event, EventStream
from grouprl.chat.messages_request import translated
from grouprl.chat.refusal import Refusal
from grouprl.chat.reply import Choice, Completion, assistant_message
from grouprl.chat.request import ChatRequest, read_object, read_request
from grouprl.core.json_types import JsonObject

KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Error types by HTTP status."""


class MessagesApi(Api):
    """Anthropic's messages, with blocks of content and named events."""

    path = "/v1/messages"
    counting = "/v1/messages/count_tokens"
    """Path at which the tokens of a request are counted without sampling."""
    names: ClassVar[Mapping[str, str]] = {"stop": "stop_sequences", "response_format": "output_config.format"}

    def request(self, given: JsonObject) -> ChatRequest:
        """Return the request in a body's object."""
        return read_request(translated(given))

    def counted(self, body: bytes, ignoring: bool = False) -> ChatRequest:
        """Return the request in a body whose tokens are to be counted; raise Refusal for an invalid one."""
        return self.accepted({**read_object(body), "max_tokens": 1}, ignoring)

    def whole(self, request: ChatRequest, completion: Completion, model: str) -> JsonObject:
        """Return a `message` object."""
        (choice,) = completion.choices
        return {
            **_head(request, model),
            "content": _blocks(request, choice),
            **_ending(request, choice),
            "usage": _usage(completion),
            **_ids(request, completion),
        }

    def stream(self, request: ChatRequest, model: str) -> EventStream:
        """Return the events of a streamed answer."""
        return _MessageEvents(request, model)

    def error(self, error: Refusal) -> JsonObject:
        """Return the body of a refusal."""
        other = "invalid_request_error" if error.status < 500 else "api_error"
        return {"type": "error", "error": {"type": KINDS.get(error.status, other), "message": error.message}}


class _MessageEvents(EventStream):
    """Named events: the message begins empty, and its blocks are opened, written and closed one after another."""

    def __init__(self, request: ChatRequest, model: str) -> None:
        self.request, self.model = request, model
        self.index = -1
        self.kind, self.text = "", ""
        """The kind of the block that is being written, and its text so far."""

    def begin(self) -> Iterator[Event]:
        """Yield the empty message; the number of prompt tokens follows at the end."""
        usage = {"input_tokens": 0, "output_tokens": 0}
        ending = {"stop_reason": None, "stop_sequence": None}
        yield {"type": "message_start", "message": {**_head(self.request, self.model), **ending, "usage": usage}}

    def piece(self, index: int, text: str, thinking: bool = False) -> Iterator[Event]:
        """Yield further text of the answer, or of its thinking."""
        yield from self._open("thinking" if thinking else "text")
        self.text += text
        delta = {"type": f"{self.kind}_delta", self.kind: text}
        yield {"type": "content_block_delta", "index": self.index, "delta": delta}

    def end(self, completion: Completion) -> Iterator[Event]:
        """Yield the rest of the text, the calls, and the reason for the end."""
        (choice,) = completion.choices
        for index, block in enumerate(_blocks(self.request, choice)):
            if block["type"] == "tool_use":
                yield from _use(index, block)
            elif index >= self.index:
                yield from self._rest(block)
        delta, usage = _ending(self.request, choice), _usage(completion)
        yield {"type": "message_delta", "delta": delta, "usage": usage, **_ids(self.request, completion)}
        yield {"type": "message_stop"}

    def refuse(self, error: Refusal) -> Iterator[Event]:
        """Yield the error of a failed stream."""
        yield MessagesApi().refusal(error)

    def _open(self, kind: str) -> Iterator[Event]:
        """Open a block of this kind unless one is open; close a block of another kind."""
        if self.kind == kind:
            return
        if self.kind:
            yield {"type": "content_block_stop", "index": self.index}
        self.index, self.kind, self.text = self.index + 1, kind, ""
        block = _thinking("") if kind == "thinking" else {"type": "text", "text": ""}
        yield {"type": "content_block_start", "index": self.index, "content_block": block}

    def _rest(self, block: JsonObject) -> Iterator[Event]:
        kind = block["type"]
        yield from self._open(kind)
        if rest := block[kind][len(self.text) :]:
            yield from self.piece(0, rest, kind == "thinking")
        yield {"type": "content_block_stop", "index": self.index}
        self.kind = ""


def _use(index: int, block: dict[str, object]) -> Iterator[Event]:
    yield {"type": "content_block_start", "index": index, "content_block": {**block, "input": {}}}
    delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}
    yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _head(request: ChatRequest, model: str) -> JsonObject:
    return {"id": f"msg_{request.mark}", "type": "message", "role": "assistant", "model": model, "content": []}


def _blocks(request: ChatRequest, choice: Choice) -> list[JsonObject]:
    """Return the blocks of an answer: its thinking, its text (if any, or without calls) and its calls."""
    message = assistant_message(request, choice)
    text, calls = message["content"] or "", message.get("tool_calls", [])
    thinking = message.get("reasoning_content")
    return [
        *([_thinking(thinking)] if thinking else []),
        *([{"type": "text", "text": text}] if text or not calls else []),
        *(
            {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": _input(call)}
            for call in calls
        ),
    ]


def _thinking(text: str) -> JsonObject:
    return {"type": "thinking", "thinking": text, "signature": ""}


def _input(call: JsonObject) -> dict[str, object]:
    """Return the arguments of a call; positional ones, as tiny models write them, are one text under 'arguments'."""
    found = json.loads(call["function"]["arguments"])
    return found if isinstance(found, dict) else {"arguments": found}


def _ending(request: ChatRequest, choice: Choice) -> dict[str, object]:
    if "tool_calls" in assistant_message(request, choice):
        reason = "tool_use"
    elif choice.finish == "length":
        reason = "max_tokens"
    else:
        reason = "end_turn" if choice.stop is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": choice.stop if reason == "stop_sequence" else None}


def _usage(completion: Completion) -> dict[str, int]:
    return {"input_tokens": completion.read, "output_tokens": completion.sampled}


def _ids(request: ChatRequest, completion: Completion) -> dict[str, list[int]]:
    if not request.return_token_ids:
        return {}
    sampled = [token.id for token in completion.choices[0].tokens]
    return {"prompt_token_ids": list(completion.prompt_ids), "token_ids": sampled}
