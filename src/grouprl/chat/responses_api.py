"""OpenAI's responses: /v1/responses, without what is stored between requests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from grouprl.chat.api import Api, Event, EventStream
from grouprl.chat.refusal import Refusal
from grouprl.chat.reply import Choice, Completion, assistant_message, logprobs
from grouprl.chat.request import ChatRequest, read_request
from grouprl.chat.responses_request import translated


class ResponsesApi(Api):
    """Responses: items of output instead of messages, and named events."""

    path = "/v1/responses"
    names: ClassVar[Mapping[str, str]] = {"messages": "input", "max_tokens": "max_output_tokens"}

    def request(self, given: dict[str, Any]) -> ChatRequest:
        """Return the request that a body's object is."""
        return read_request(translated(given))

    def whole(self, request: ChatRequest, completion: Completion, model: str) -> dict[str, Any]:
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
        """Return the events."""
        return _ResponseEvents(self, request, model)

    def error(self, error: Refusal) -> dict[str, Any]:
        """Return the body of a refusal."""
        return error.body()


class _ResponseEvents(EventStream):
    """Named events, numbered; the response itself stands in the first and in the last ones."""

    def __init__(self, api: ResponsesApi, request: ChatRequest, model: str) -> None:
        self.api, self.request, self.model = api, request, model
        self.number = -1
        self.sent = 0
        self.opened = False

    def begin(self) -> Iterator[Event]:
        """Yield that the response was begun."""
        response = _head(self.request, self.model, "in_progress")
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def piece(self, index: int, text: str) -> Iterator[Event]:
        """Yield more of the message's text."""
        yield from self._open()
        self.sent += len(text)
        yield self._event("response.output_text.delta", **self._place(), delta=text, logprobs=[])

    def end(self, completion: Completion) -> Iterator[Event]:
        """Yield the rest of the text, the calls, and the whole response."""
        whole = self.api.whole(self.request, completion, self.model)
        for index, item in enumerate(whole["output"]):
            yield from (self._close(item) if item["type"] == "message" else self._call(index, item))
        kind = "completed" if whole["status"] == "completed" else "incomplete"
        yield self._event(f"response.{kind}", response=whole)

    def refuse(self, error: Refusal) -> Iterator[Event]:
        """Yield the error."""
        told = error.renamed(self.api.names)
        code = "server_error" if error.status >= 500 else "invalid_request_error"
        yield self._event("error", code=code, message=told.message, param=told.param)

    def _open(self) -> Iterator[Event]:
        if self.opened:
            return
        self.opened = True
        item = {"id": _message_id(self.request), "type": "message", "role": "assistant", "content": []}
        yield self._event("response.output_item.added", output_index=0, item={**item, "status": "in_progress"})
        yield self._event("response.content_part.added", **self._place(), part=_part("", []))

    def _close(self, item: dict[str, Any]) -> Iterator[Event]:
        part, place = item["content"][0], self._place()
        if rest := part["text"][self.sent :]:
            yield from self.piece(0, rest)
        yield from self._open()
        text = {"text": part["text"], "logprobs": part["logprobs"]}
        yield self._event("response.output_text.done", **place, **text)
        yield self._event("response.content_part.done", **place, part=part)
        yield self._event("response.output_item.done", output_index=0, item=item)

    def _call(self, index: int, item: dict[str, Any]) -> Iterator[Event]:
        place = {"item_id": item["id"], "output_index": index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        yield self._event("response.function_call_arguments.delta", **place, delta=item["arguments"])
        done = {"arguments": item["arguments"], "name": item["name"]}
        yield self._event("response.function_call_arguments.done", **place, **done)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _place(self) -> dict[str, Any]:
        return {"item_id": _message_id(self.request), "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **more: Any) -> Event:
        self.number += 1
        return {"type": kind, "sequence_number": self.number, **more}


def _head(request: ChatRequest, model: str, status: str) -> dict[str, Any]:
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


def _items(request: ChatRequest, choice: Choice) -> list[dict[str, Any]]:
    """Return the items of an answer: a message where there is text or no call, and the calls."""
    message = assistant_message(request, choice)
    text, calls = message["content"] or "", message.get("tool_calls", [])
    status = "incomplete" if choice.finish == "length" else "completed"
    part = _part(text, logprobs(choice.tokens) if request.logprobs else [])
    head = {"id": _message_id(request), "type": "message", "role": "assistant", "status": status}
    return [
        *([{**head, "content": [part]}] if text or not calls else []),
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


def _part(text: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": found}


def _message_id(request: ChatRequest) -> str:
    return f"msg_{request.mark}"


def _usage(completion: Completion) -> dict[str, Any]:
    prompt, sampled = len(completion.prompt_ids), completion.sampled
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
