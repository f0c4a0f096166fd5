"""Completions as what answers a request gives them, before a protocol writes them down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grouprl.chat.request import ChatRequest, normal
from grouprl.chat.tool_calls import protocol_calls, said_in


@dataclass(frozen=True)
class Token:
    """A sampled token, and its log-prob at the temperature that it was sampled at."""

    text: str
    logp: float
    id: int = -1
    top: tuple[tuple[str, float], ...] = ()
    """The likeliest tokens in its place with their log-probs, the likeliest first."""


@dataclass(frozen=True)
class Choice:
    """One answer: its text, why it ended ('stop' or 'length'), its tokens."""

    text: str
    finish: str
    tokens: tuple[Token, ...] = ()
    stop: str | None = None
    """The stop text that ended it."""


@dataclass(frozen=True)
class Completion:
    """The answers to a request."""

    choices: tuple[Choice, ...]
    prompt_ids: tuple[int, ...] = ()
    """Tokens of the prompt; none where text is all that is known, and then `usage` is 0 throughout."""

    @property
    def sampled(self) -> int:
        """Tokens of all answers."""
        return sum(len(choice.tokens) for choice in self.choices)


def assistant_message(request: ChatRequest, choice: Choice) -> dict[str, Any]:
    """Return an answer as the message that a client gets, and sends back with its next request."""
    found = said_in(choice.text)
    callable_ = request.tools and request.tool_choice.kind != "none"
    calls = protocol_calls(found, choice.text, request.told, request.tools) if callable_ else []
    same = found.calls or (not found.thinking and found.answer == choice.text.strip())
    content = (found.beside or None) if calls else str(choice.text) if same else found.answer
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if found.thinking and (calls or not same):
        message["reasoning_content"] = found.thinking
    return {**message, "tool_calls": calls} if calls else message


def said(request: ChatRequest, choice: Choice) -> tuple[dict[str, Any], ...]:
    """Return the conversation up to and with an answer, normalised."""
    return (*request.messages, normal(assistant_message(request, choice)))


def logprobs(tokens: Sequence[Token]) -> list[dict[str, Any]]:
    """Return tokens with their log-probs as both of OpenAI's protocols write them."""
    return [
        {**_logprob(token.text, token.logp), "top_logprobs": [_logprob(text, logp) for text, logp in token.top]}
        for token in tokens
    ]


def _logprob(text: str, logp: float) -> dict[str, object]:
    return {"token": text, "logprob": logp, "bytes": list(text.encode())}
