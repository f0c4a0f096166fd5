"""OpenAI's responses: /v1/responses, without storage between requests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import ClassVar

from grouprl.chat.api import Api, Event, EventStream
from grouprl.chat.refusal import Refusal
from grouprl.chat.reply import Choice, Completion, assistant_message, logprobs
from grouprl.chat.request import ChatRequest, read_request
from grouprl.chat.responses_request import translated
from grouprl.core.json_types import JsonObject

TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}
"""The name of an item's text in events, by its type."""
IDS = {"message": "msg", "reasoning": "rs"}


class ResponsesApi(Api):
    """OpenAI's responses, with output items instead of messages, and named events."""

    path = "/v1/responses"
    names: ClassVar[Mapping[str, str]] = {
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "response_format": "text.format",
    }

    def request(self, given: JsonObject) -> ChatRequest:
        """Return the request in a body's object."""
        return read_request(translated(given))

    def whole(self, request: ChatRequest, completion: Completion, model: str) -> JsonObject:
        """Return a `response` object."""
        (choice,) = completion.choices
        cut = choice.finish == "length"
        return {
            **_head(request, model, "incomplete" if cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": _items(request, choice),
            "usage": _usage(completion),
            **_ids(request, completion),
        }

    def stream(self, request: ChatRequest, model: str) -> EventStream:
        """Return the events of a streamed answer."""
        return _ResponseEvents(self, request, model)

    def error(self, error: Refusal) -> JsonObject:
        """Return the body of a refusal."""
        return error.body()


class _ResponseEvents(EventStream):
    """Named, numbered events; the first ones and the last one hold the response itself."""

    def __init__(self, api: ResponsesApi, request: ChatRequest, model: str) -> None:
        self.api, self.request, self.model = api, request, model
        self.number = self.index = -1
        self.kind, self.text = "", ""
        """The kind of the item that is being written, and its text so far."""

    def begin(self) -> Iterator[Event]:
        """Yield the events for the beginning of the response."""
        response = _head(self.request, self.model, "in_progress")
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def piece(self, index: int, text: str, thinking: bool = False) -> Iterator[Event]:
        """Yield further text of the message, or of its reasoning."""
        yield from self._open("reasoning" if thinking else "message")
        self.text += text
        logprobs: JsonObject = {} if thinking else {"logprobs": []}
        yield self._event(f"response.{TEXTS[self.kind]}.delta", **self._place(), delta=text, **logprobs)

    def end(self, completion: Completion) -> Iterator[Event]:
        """Yield the rest of the text, the calls, and the whole response."""
        whole = self.api.whole(self.request, completion, self.model)
        for index, item in enumerate(whole["output"]):
            if item["type"] == "function_call":
                yield from self._call(index, item)
            elif index >= self.index:
                yield from self._rest(item)
        kind = "completed" if whole["status"] == "completed" else "incomplete"
        yield self._event(f"response.{kind}", response=whole)

    def refuse(self, error: Refusal) -> Iterator[Event]:
        """Yield the error of a failed stream."""
        told = error.renamed(self.api.names)
        code = "server_error" if error.status >= 500 else "invalid_request_error"
        yield self._event("error", code=code, message=told.message, param=told.param)

    def _open(self, kind: str) -> Iterator[Event]:
        """Open an item of this kind unless one is open; close an item of another kind."""
        if self.kind == kind:
            return
        if self.kind == "reasoning":
            yield from self._close(_reasoning(self.request, self.text))
        self.index, self.kind, self.text = self.index + 1, kind, ""
        begun = _reasoning(self.request, "") if kind == "reasoning" else _message(self.request, "", [], "in_progress")
        part = begun["content"][0]
        yield self._event("response.output_item.added", output_index=self.index, item={**begun, "content": []})
        yield self._event("response.content_part.added", **self._place(), part=part)

    def _rest(self, item: JsonObject) -> Iterator[Event]:
        yield from self._open(item["type"])
        if rest := item["content"][0]["text"][len(self.text) :]:
            yield from self.piece(0, rest, item["type"] == "reasoning")
        yield from self._close(item)

    def _close(self, item: JsonObject) -> Iterator[Event]:
        part, place, kind = item["content"][0], self._place(), TEXTS[self.kind]
        text = {name: part[name] for name in ("text", "logprobs") if name in part}
        yield self._event(f"response.{kind}.done", **place, **text)
        yield self._event("response.content_part.done", **place, part=part)
        yield self._event("response.output_item.done", output_index=self.index, item=item)
        self.kind = ""

    def _call(self, index: int, item: JsonObject) -> Iterator[Event]:
        place = {"item_id": item["id"], "output_index": index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        yield self._event("response.function_call_arguments.delta", **place, delta=item["arguments"])
        done = {"arguments": item["arguments"], "name": item["name"]}
        yield self._event("response.function_call_arguments.done", **place, **done)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _place(self) -> JsonObject:
        number = f"{IDS[self.kind]}_{self.request.mark}"
        return {"item_id": number, "output_index": self.index, "content_index": 0}

    def _event(self, kind: str, **more: object) -> Event:
        self.number += 1
        return {"type": kind, "sequence_number": self.number, **more}


def _head(request: ChatRequest, model: str, status: str) -> JsonObject:
    tools = [{"type": "function", "strict": False, "parameters": {}, **tool["function"]} for tool in request.tools]
    return {
        "id": f"resp_{request.mark}",
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": request.max_tokens,
        "metadata": {},
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": request.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": tools,
        "top_logprobs": request.top_logprobs,
        "top_p": request.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def _items(request: ChatRequest, choice: Choice) -> list[JsonObject]:
    """Return the items of an answer: its thinking, a message (with text, or without calls) and its calls."""
    message = assistant_message(request, choice)
    text, calls = message["content"] or "", message.get("tool_calls", [])
    status = "incomplete" if choice.finish == "length" else "completed"
    found = logprobs(choice.tokens) if request.logprobs else []
    thinking = message.get("reasoning_content")
    return [
        *([_reasoning(request, thinking)] if thinking else []),
        *([_message(request, text, found, status)] if text or not calls else []),
        *(
            {
                "id": f"fc_{call['id'].removeprefix('call_')}",
                "type": "function_call",
                "call_id": call["id"],
                "name": call["function"]["name"],
                "arguments": call["function"]["arguments"],
                "status": "completed",
            }
            for call in calls
        ),
    ]


def _message(request: ChatRequest, text: str, found: list[JsonObject], status: str) -> JsonObject:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": found}
    head = {"id": f"{IDS['message']}_{request.mark}", "type": "message", "role": "assistant", "status": status}
    return {**head, "content": [part]}


def _reasoning(request: ChatRequest, text: str) -> JsonObject:
    part = {"type": "reasoning_text", "text": text}
    return {"id": f"{IDS['reasoning']}_{request.mark}", "type": "reasoning", "summary": [], "content": [part]}


def _usage(completion: Completion) -> JsonObject:
    prompt, sampled = completion.read, completion.sampled
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + sampled,
    }


def _ids(request: ChatRequest, completion: Completion) -> dict[str, list[int]]:
    if not request.return_token_ids:
        return {}
    sampled = [token.id for token in completion.choices[0].tokens]
    return {"prompt_token_ids": list(completion.prompt_ids), "token_ids": sampled}
