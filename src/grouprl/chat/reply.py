"""Completions as the protocol's JSON, whole and in pieces."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from grouprl.chat.request import ChatRequest, normal
from grouprl.chat.tool_calls import protocol_calls, said_in


@dataclass(frozen=True)
class Token:
    """A sampled token, and its log-prob under the distribution that it was sampled from."""

    text: str
    logp: float


@dataclass(frozen=True)
class Choice:
    """One answer: its text, why it ended ('stop' or 'length'), its tokens."""

    text: str
    finish: str
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True)
class Completion:
    """The answers to a request."""

    choices: tuple[Choice, ...]
    prompt_tokens: int = 0
    """Tokens of the prompt; 0 where text is all that is known, and then `usage` is 0 throughout."""


def assistant_message(request: ChatRequest, choice: Choice) -> dict[str, Any]:
    """Return an answer as the message that a client gets, and sends back with its next request."""
    found = said_in(choice.text)
    calls = protocol_calls(found, choice.text, request.told) if request.tools else []
    same = found.calls or (not found.thinking and found.answer == choice.text.strip())
    content = (found.beside or None) if calls else str(choice.text) if same else found.answer
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if found.thinking and (calls or not same):
        message["reasoning_content"] = found.thinking
    return {**message, "tool_calls": calls} if calls else message


def said(request: ChatRequest, choice: Choice) -> tuple[dict[str, Any], ...]:
    """Return the conversation up to and with an answer, normalised."""
    return (*request.messages, normal(assistant_message(request, choice)))


def as_json(request: ChatRequest, completion: Completion, model: str) -> dict[str, Any]:
    """Return a `chat.completion` object."""
    choices = [
        {
            "index": index,
            "message": assistant_message(request, choice),
            "finish_reason": _finish(request, choice),
            "logprobs": _logprobs(choice.tokens) if request.logprobs else None,
        }
        for index, choice in enumerate(completion.choices)
    ]
    head = _head(request, model, "chat.completion")
    return {**head, "choices": choices, "usage": _usage(completion)}


def piece(request: ChatRequest, model: str, index: int, text: str, of: str = "content") -> dict[str, Any]:
    """Return a `chat.completion.chunk` with more of an answer's text, or of its thinking (`reasoning_content`)."""
    delta = {"role": "assistant", of: text}
    return _chunk(request, model, [{"index": index, "delta": delta, "finish_reason": None}])


def last_pieces(
    request: ChatRequest, completion: Completion, model: str, sent: Sequence[int], thought: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield the chunks that end a stream; `sent` characters of each answer went before, and `thought` of its thinking.

    Answers that may hold tool calls come whole, here.
    """
    for index, choice in enumerate(completion.choices):
        message = assistant_message(request, choice)
        calls = [{"index": i, **call} for i, call in enumerate(message.get("tool_calls", ()))]
        rest = (message["content"] or "")[sent[index] :]
        delta = {"role": "assistant", "content": rest or None, **({"tool_calls": calls} if calls else {})}
        if more := message.get("reasoning_content", "")[thought[index] :]:
            delta["reasoning_content"] = more
        logprobs = _logprobs(choice.tokens) if request.logprobs else None
        yield _chunk(request, model, [{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}])
        end = {"index": index, "delta": {}, "finish_reason": _finish(request, choice)}
        yield _chunk(request, model, [end])
    if request.stream_options.include_usage:
        yield {**_chunk(request, model, []), "usage": _usage(completion)}


def _chunk(request: ChatRequest, model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {**_head(request, model, "chat.completion.chunk"), "choices": choices}


def _head(request: ChatRequest, model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{request.mark}", "object": kind, "created": int(time.time()), "model": model}


def _finish(request: ChatRequest, choice: Choice) -> str:
    return "tool_calls" if "tool_calls" in assistant_message(request, choice) else choice.finish


def _usage(completion: Completion) -> dict[str, int]:
    asked, drawn = completion.prompt_tokens, sum(len(choice.tokens) for choice in completion.choices)
    return {"prompt_tokens": asked, "completion_tokens": drawn, "total_tokens": asked + drawn}


def _logprobs(tokens: Sequence[Token]) -> dict[str, Any]:
    return {
        "content": [
            {"token": t.text, "logprob": t.logp, "bytes": list(t.text.encode()), "top_logprobs": []} for t in tokens
        ],
        "refusal": None,
    }
