"""OpenAI's completions of a text: /v1/completions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from grouprl.chat.api import Api, Event, EventStream
from grouprl.chat.refusal import Refusal, Unsupported
from grouprl.chat.reply import Choice, Completion
from grouprl.chat.request import MOST_ALTERNATIVES, ChatRequest, read_request, refuse_unknown
from grouprl.core.errors import shortened
from grouprl.core.json_types import JsonObject

SHARED = (
    *("frequency_penalty", "logit_bias", "max_tokens", "min_p", "model", "n", "presence_penalty", "repetition_penalty"),
    *("return_token_ids", "seed", "stop", "stream", "stream_options", "temperature", "top_k", "top_p", "user"),
)
"""Parameters that mean the same in a `ChatRequest`."""
NEUTRAL: dict[str, object] = {"best_of": 1, "echo": False, "suffix": ""}
"""Settings that are accepted only at these values."""
TOKENS = 16
"""Tokens of a completion whose request sets no limit, as in OpenAI's protocol."""


class TextApi(Api):
    """Completions of one text as it is, without a chat template."""

    path = "/v1/completions"
    end = "data: [DONE]\n\n"

    def request(self, given: JsonObject) -> ChatRequest:
        """Return the request in a body's object."""
        wanted = {name: value for name, value in given.items() if value is not None}
        refuse_unknown(wanted, (*SHARED, *NEUTRAL, "prompt", "logprobs"))
        for name, neutral in NEUTRAL.items():
            if wanted.get(name, neutral) != neutral:
                raise Unsupported(f"{name} = {shortened(wanted[name], 40)} is not supported; leave it out", name)
        found = {name: wanted[name] for name in SHARED if name in wanted}
        found = {"max_tokens": TOKENS, **found, **_alternatives(wanted.get("logprobs"))}
        read = read_request({**found, "messages": [{"role": "user", "content": _prompt(wanted.get("prompt"))}]})
        return read.model_copy(update={"raw": True})

    def whole(self, request: ChatRequest, completion: Completion, model: str) -> JsonObject:
        """Return a `text_completion` object."""
        choices = [_choice(request, index, choice, choice.text) for index, choice in enumerate(completion.choices)]
        return {**_head(request, model), "choices": choices, "usage": _usage(completion)}

    def stream(self, request: ChatRequest, model: str) -> EventStream:
        """Return the chunks of a streamed completion."""
        return _TextChunks(request, model)

    def error(self, error: Refusal) -> JsonObject:
        """Return the body of a refusal."""
        return error.body()

    def written(self, event: Event) -> str:
        """Return the text of a chunk; chunks have no event types."""
        return f"data: {json.dumps(event)}\n\n"


class _TextChunks(EventStream):
    """`text_completion` objects with parts of the texts."""

    def __init__(self, request: ChatRequest, model: str) -> None:
        self.request, self.model, self.sent = request, model, [0] * request.n

    def piece(self, index: int, text: str, thinking: bool = False) -> Iterator[Event]:
        """Yield a chunk with further text."""
        self.sent[index] += len(text)
        choice = {"index": index, "text": text, "finish_reason": None, "logprobs": None}
        yield {**_head(self.request, self.model), "choices": [choice]}

    def end(self, completion: Completion) -> Iterator[Event]:
        """Yield the rest of each text with the reason for its end, and the usage if requested."""
        for index, choice in enumerate(completion.choices):
            rest = _choice(self.request, index, choice, choice.text[self.sent[index] :])
            yield {**_head(self.request, self.model), "choices": [rest]}
        if self.request.stream_options.include_usage:
            yield {**_head(self.request, self.model), "choices": [], "usage": _usage(completion)}

    def refuse(self, error: Refusal) -> Iterator[Event]:
        """Yield the error of a failed stream."""
        yield error.body()


def _prompt(given: object) -> str:
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    if not isinstance(given, str) or not given:
        rule = "it must be one text that is not empty; send a request for each prompt"
        raise Refusal(f"prompt = {shortened(given)}; {rule}", "prompt")
    return given


def _alternatives(given: object) -> dict[str, object]:
    """Return the settings for log-probs, of which this protocol gives the number of alternatives."""
    if given is None or given is False:
        return {}
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= MOST_ALTERNATIVES:
        raise Refusal(f"logprobs = {shortened(given, 40)}; it must be 0 to {MOST_ALTERNATIVES}", "logprobs")
    return {"logprobs": True, "top_logprobs": given}


def _head(request: ChatRequest, model: str) -> JsonObject:
    return {"id": f"cmpl-{request.mark}", "object": "text_completion", "created": int(time.time()), "model": model}


def _choice(request: ChatRequest, index: int, choice: Choice, text: str) -> JsonObject:
    ids = {"token_ids": [token.id for token in choice.tokens]} if request.return_token_ids else {}
    logprobs = _logprobs(request, choice) if request.logprobs else None
    return {"index": index, "text": str(text), "finish_reason": choice.finish, "logprobs": logprobs, **ids}


def _logprobs(request: ChatRequest, choice: Choice) -> JsonObject:
    starts = [0]
    for token in choice.tokens:
        starts.append(starts[-1] + len(token.text))
    return {
        "tokens": [token.text for token in choice.tokens],
        "token_logprobs": [token.logp for token in choice.tokens],
        "top_logprobs": [dict(token.top) for token in choice.tokens] if request.top_logprobs else None,
        "text_offset": starts[:-1],
    }


def _usage(completion: Completion) -> dict[str, int]:
    read, sampled = completion.read, completion.sampled
    return {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}
