"""Completions as the backend returns them, before a protocol turns them into its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grouprl.chat.request import ChatRequest, normal
from grouprl.chat.tool_calls import protocol_calls, said_in
from grouprl.core.json_types import JsonObject


@dataclass(frozen=True)
class Token:
    """A sampled token, and its log-prob at the sampling temperature."""

    text: str
    logp: float
    id: int = -1
    top: tuple[tuple[str, float], ...] = ()
    """The likeliest tokens at its position with their log-probs, likeliest first."""


@dataclass(frozen=True)
class Choice:
    """One answer: its text, the reason for its end ('stop' or 'length'), and its tokens."""

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
    """Token ids of the prompt; empty if only the text is known."""
    counted: tuple[int, int] | None = None
    """Numbers of tokens of the prompt and of the answers, where the tokens themselves are not known."""

    @property
    def read(self) -> int:
        """Number of tokens of the prompt."""
        return len(self.prompt_ids) if self.counted is None else self.counted[0]

    @property
    def sampled(self) -> int:
        """Number of tokens of all answers."""
        if self.counted is not None:
            return self.counted[1]
        return sum(len(choice.tokens) for choice in self.choices)


def assistant_message(request: ChatRequest, choice: Choice) -> JsonObject:
    """Return an answer as the message that a client receives and sends back with its next request."""
    found = said_in(choice.text)
    callable_ = request.tools and request.tool_choice.kind != "none"
    calls = protocol_calls(found, choice.text, request.told, request.tools) if callable_ else []
    same = found.calls or (not found.thinking and found.answer == choice.text.strip())
    content = (found.beside or None) if calls else str(choice.text) if same else found.answer
    message: JsonObject = {"role": "assistant", "content": content}
    if found.thinking and (calls or not same):
        message["reasoning_content"] = found.thinking
    return {**message, "tool_calls": calls} if calls else message


def said(request: ChatRequest, choice: Choice) -> tuple[JsonObject, ...]:
    """Return the normalised conversation up to and including an answer."""
    return (*request.messages, normal(assistant_message(request, choice)))


def logprobs(tokens: Sequence[Token]) -> list[JsonObject]:
    """Return tokens with their log-probs as both of OpenAI's protocols write them."""
    return [
        {**_logprob(token.text, token.logp), "top_logprobs": [_logprob(text, logp) for text, logp in token.top]}
        for token in tokens
    ]


def _logprob(text: str, logp: float) -> dict[str, object]:
    return {"token": text, "logprob": logp, "bytes": list(text.encode())}
