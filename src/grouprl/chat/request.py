"""What a client may ask of /v1/chat/completions, and what is refused in words."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pydantic
from pydantic import Field

from grouprl.errors import suggest

NEUTRAL: dict[str, Any] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
    "top_logprobs": 0,
}
"""Settings that are understood at these values only."""
IGNORED = (
    "metadata",
    "prompt_cache_key",
    "reasoning_effort",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
)
"""Settings that change nothing here."""
WISHES = ("parallel_tool_calls", "response_format", "tool_choice")
"""Settings that ask for a form of answer. They are taken, and nothing enforces them: a policy writes what it writes."""


class Refusal(Exception):
    """A request that cannot be served: the HTTP status, the message and which parameter it is about."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.status = message, param, status

    def body(self) -> dict[str, Any]:
        """Return the error as clients of the protocol expect it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": None}}


class StreamOptions(pydantic.BaseModel):
    """What a stream ends with."""

    include_usage: bool = False


class ChatRequest(pydantic.BaseModel):
    """A request; `messages` are normalised (`normal`)."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    model: str = ""
    messages: tuple[dict[str, Any], ...] = Field(min_length=1)
    tools: tuple[dict[str, Any], ...] = ()
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    n: int = Field(1, ge=1)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()


def read_request(body: bytes) -> ChatRequest:
    """Return the request in a body. Raises Refusal, naming the parameter and what it may be."""
    try:
        given = json.loads(body)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise Refusal(f"The body is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise Refusal("The body is not a JSON object")
    wanted = {name: value for name, value in given.items() if value is not None and name not in (*IGNORED, *WISHES)}
    for name, neutral in NEUTRAL.items():
        value = wanted.pop(name, neutral)
        if value != neutral:
            raise Refusal(f"{name} = {json.dumps(value)} is not supported; leave it out", name)
    if "max_completion_tokens" in wanted:
        wanted["max_tokens"] = wanted.pop("max_completion_tokens")
    if isinstance(wanted.get("stop"), str):
        wanted["stop"] = [wanted["stop"]]
    try:
        request = ChatRequest.model_validate(wanted)
    except pydantic.ValidationError as error:
        raise _in_words(error) from None
    if not all(request.stop):
        raise Refusal("stop holds an empty text, which would end every answer at once", "stop")
    return request.model_copy(update={"messages": tuple(normal(message) for message in request.messages)})


def normal(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with what matters to a policy alone: role, content as one text, tool calls, what it answers.

    Raises:
        Refusal: for a message without a role, or content that is no text.
    """
    role = message.get("role")
    if not isinstance(role, str):
        raise Refusal(f"A message has no role: {json.dumps(dict(message))[:200]}", "messages")
    plain: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": _text(message)}
    if calls := message.get("tool_calls"):
        plain["tool_calls"] = [_call(call) for call in calls]
    for name in ("tool_call_id", "name"):
        if message.get(name):
            plain[name] = message[name]
    return plain


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two normalised messages say the same; spaces around the text and ids of calls do not matter."""
    return _essence(one) == _essence(other)


def continues(earlier: Sequence[Mapping[str, Any]], later: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a conversation begins with all that was said in an earlier one, and goes on."""
    return len(later) > len(earlier) and all(map(same, earlier, later))


def _essence(message: Mapping[str, Any]) -> tuple[Any, ...]:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return message["role"], message["content"].strip(), [(call["name"], call["arguments"]) for call in calls]


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return "".join(str(part["text"]) for part in content)
    raise Refusal("The content of a message is a text, or a list of parts of type 'text'", "messages")


def _call(call: Any) -> dict[str, Any]:
    """Return a tool call with its arguments as an object, where they are one: chat templates write them out."""
    try:
        function = call["function"]
        name, arguments = str(function["name"]), function.get("arguments") or "{}"
    except (TypeError, KeyError) as error:
        raise Refusal(f"A tool call lacks {error}: {json.dumps(call)[:200]}", "messages") from None
    if isinstance(arguments, str):
        with contextlib.suppress(json.JSONDecodeError):
            arguments = json.loads(arguments)
    return {"id": str(call.get("id", "")), "type": "function", "function": {"name": name, "arguments": arguments}}


def _in_words(error: pydantic.ValidationError) -> Refusal:
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else "body"
    if first["type"] == "extra_forbidden":
        return Refusal(f"There is no parameter '{name}'. {suggest(name, ChatRequest.model_fields)}", name)
    if first["type"] == "missing":
        return Refusal(f"'{name}' is missing", name)
    return Refusal(f"{name} = {json.dumps(first['input'], default=str)[:200]}: {first['msg']}", name)
