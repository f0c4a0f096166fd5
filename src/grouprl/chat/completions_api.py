"""OpenAI's chat completions: /v1/chat/completions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from grouprl.chat.api import Api, Event, EventStream
from grouprl.chat.refusal import Refusal
from grouprl.chat.reply import Choice, Completion, assistant_message, logprobs
from grouprl.chat.request import INNER, ChatRequest, read_request, refuse_unknown
from grouprl.core.json_types import JsonObject


class CompletionsApi(Api):
    """Chat completions, the only protocol here with several answers to a request."""

    path = "/v1/chat/completions"
    end = "data: [DONE]\n\n"

    def request(self, given: JsonObject) -> ChatRequest:
        """Return the request, which has the same JSON in this protocol."""
        refuse_unknown(given, set(given) - INNER)
        return read_request(given)

    def whole(self, request: ChatRequest, completion: Completion, model: str) -> JsonObject:
        """Return a `chat.completion` object."""
        choices = [
            {
                "index": index,
                "message": assistant_message(request, choice),
                "finish_reason": _finish(request, choice),
                "logprobs": _logprobs(request, choice),
                **_token_ids(request, choice),
            }
            for index, choice in enumerate(completion.choices)
        ]
        head = _head(request, model, "chat.completion")
        return {**head, "choices": choices, "usage": _usage(completion), **_prompt_ids(request, completion)}

    def stream(self, request: ChatRequest, model: str) -> EventStream:
        """Return the chunks of a streamed answer."""
        return _Chunks(request, model)

    def error(self, error: Refusal) -> JsonObject:
        """Return the body of a refusal."""
        return error.body()

    def written(self, event: Event) -> str:
        """Return the text of a chunk; chunks have no event types."""
        return f"data: {json.dumps(event)}\n\n"


class _Chunks(EventStream):
    """`chat.completion.chunk` objects."""

    def __init__(self, request: ChatRequest, model: str) -> None:
        self.request, self.model = request, model
        self.sent = {"content": [0] * request.n, "reasoning_content": [0] * request.n}
        """Number of characters sent of each answer, and of the thinking before it."""

    def piece(self, index: int, text: str, thinking: bool = False) -> Iterator[Event]:
        """Yield a chunk with further text."""
        of = "reasoning_content" if thinking else "content"
        self.sent[of][index] += len(text)
        delta = {"role": "assistant", of: text}
        yield self._chunk([{"index": index, "delta": delta, "finish_reason": None}])

    def end(self, completion: Completion) -> Iterator[Event]:
        """Yield the rest of each answer, the reason for its end, and the usage if requested."""
        request = self.request
        for index, choice in enumerate(completion.choices):
            message = assistant_message(request, choice)
            calls = [{"index": i, **call} for i, call in enumerate(message.get("tool_calls", ()))]
            rest = {of: (message.get(of) or "")[sent[index] :] or None for of, sent in self.sent.items()}
            thinking = {} if rest["reasoning_content"] is None else {"reasoning_content": rest["reasoning_content"]}
            delta: JsonObject = {"role": "assistant", "content": rest["content"], **thinking}
            if calls:
                delta["tool_calls"] = calls
            more = {"logprobs": _logprobs(request, choice), **_token_ids(request, choice)}
            chunk = self._chunk([{"index": index, "delta": delta, **more, "finish_reason": None}])
            yield {**chunk, **_prompt_ids(request, completion)}
            yield self._chunk([{"index": index, "delta": {}, "finish_reason": _finish(request, choice)}])
        if request.stream_options.include_usage:
            yield {**self._chunk([]), "usage": _usage(completion)}

    def refuse(self, error: Refusal) -> Iterator[Event]:
        """Yield the error of a failed stream."""
        yield error.body()

    def _chunk(self, choices: list[dict[str, object]]) -> Event:
        return {**_head(self.request, self.model, "chat.completion.chunk"), "choices": choices}


def _head(request: ChatRequest, model: str, kind: str) -> JsonObject:
    return {"id": f"chatcmpl-{request.mark}", "object": kind, "created": int(time.time()), "model": model}


def _finish(request: ChatRequest, choice: Choice) -> str:
    return "tool_calls" if "tool_calls" in assistant_message(request, choice) else choice.finish


def _usage(completion: Completion) -> dict[str, int]:
    prompt, sampled = completion.read, completion.sampled
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _logprobs(request: ChatRequest, choice: Choice) -> JsonObject | None:
    return {"content": logprobs(choice.tokens), "refusal": None} if request.logprobs else None


def _token_ids(request: ChatRequest, choice: Choice) -> dict[str, list[int]]:
    return {"token_ids": [token.id for token in choice.tokens]} if request.return_token_ids else {}


def _prompt_ids(request: ChatRequest, completion: Completion) -> dict[str, list[int]]:
    return {"prompt_token_ids": list(completion.prompt_ids)} if request.return_token_ids else {}
