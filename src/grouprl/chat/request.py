"""The request for completions that all protocols share; its JSON is that of /v1/chat/completions."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Annotated

import pydantic
from pydantic import Field

from grouprl.chat.answer_form import ToolChoice, read_choice, read_format
from grouprl.chat.refusal import Refusal, Unsupported
from grouprl.chat.safe_json import check_plain, read_json
from grouprl.core.errors import shortened, suggest
from grouprl.core.json_types import JsonMapping, JsonObject

MOST_COMPLETIONS = 64
MOST_TOKENS = 2**20
MOST_MESSAGES = 4096
MOST_ALTERNATIVES = 20
COOLEST, HOTTEST = 1e-4, 100.0
"""Bounds of temperatures above 0; logits divided by a smaller one would overflow."""

NEUTRAL: dict[str, object] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "logit_bias": {},
}
"""Settings that are accepted only at these values."""
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
"""Settings that are accepted but have no effect."""
INNER = {"prefill", "raw", "thinking"}
"""Fields of a request that the protocols set; clients express them in other ways."""
WISHES = ("parallel_tool_calls", "tool_choice")
"""Settings that together become one `ToolChoice`."""


class StreamOptions(pydantic.BaseModel):
    """Options for the end of a stream."""

    include_usage: bool = False


class ChatRequest(pydantic.BaseModel):
    """A request for completions; its `messages` are normalised by `normal`."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    model: str = ""
    messages: tuple[JsonObject, ...] = Field(min_length=1, max_length=MOST_MESSAGES)
    tools: tuple[JsonObject, ...] = Field((), max_length=512)
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS, strict=True)
    temperature: float = Field(1.0, ge=0, le=HOTTEST, strict=True)
    top_p: float = Field(1.0, ge=1e-6, le=1, strict=True)
    top_k: int = Field(0, ge=0, le=MOST_TOKENS, strict=True)
    """Number of the likeliest tokens that are sampled from; 0 for all."""
    min_p: float = Field(0.0, ge=0, le=1, strict=True)
    """Least probability of a token that is sampled from, as a share of the likeliest one's."""
    n: int = Field(1, ge=1, le=MOST_COMPLETIONS, strict=True)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64, strict=True)
    stop: tuple[Annotated[str, Field(max_length=256)], ...] = Field((), max_length=16)
    logprobs: bool = Field(False, strict=True)
    top_logprobs: int = Field(0, ge=0, le=MOST_ALTERNATIVES, strict=True)
    """Number of likeliest tokens returned with each sampled one."""
    return_token_ids: bool = Field(False, strict=True)
    """Whether to return the ids of the prompt's and the sampled tokens."""
    chat_template_kwargs: dict[str, object] = Field(default_factory=dict, max_length=64)
    """Variables of the chat template, such as `enable_thinking`."""
    thinking: bool | None = Field(None, strict=True)
    """Whether to think before the answer, where the chat template has a switch for it; None for its default."""
    prefill: str = ""
    """The beginning of the answer, which the client has written."""
    raw: bool = Field(False, strict=True)
    """Whether the one message is the prompt as it is, without a chat template."""
    response_format: JsonObject | None = None
    """The JSON schema that the answer must follow; None for any text."""
    tool_choice: ToolChoice = ToolChoice()
    """The tools that the answer must call."""
    stream: bool = Field(False, strict=True)
    stream_options: StreamOptions = StreamOptions()

    @cached_property
    def told(self) -> str:
        """The messages as one text, from which ids are derived."""
        return json.dumps(self.messages)

    @cached_property
    def mark(self) -> str:
        """A name that identifies the contents of the messages."""
        return hashlib.blake2b(self.told.encode(), digest_size=9).hexdigest()


def read_object(body: bytes) -> dict[str, object]:
    """Return the JSON object in a body; raise Refusal for anything else."""
    given = read_json(body)
    if not isinstance(given, dict):
        raise Refusal("The body is not a JSON object")
    return given


def read_request(given: Mapping[str, object]) -> ChatRequest:
    """Return the request in an object; raise Refusal with the wrong parameter and its allowed values."""
    wanted = {name: value for name, value in given.items() if value is not None and name not in (*IGNORED, *WISHES)}
    for name, neutral in NEUTRAL.items():
        value = wanted.pop(name, neutral)
        if value != neutral:
            raise Unsupported(f"{name} = {json.dumps(value)[:200]} is not supported; leave it out", name)
    if wanted.get("top_k") == -1:  # all tokens, as some servers write it
        wanted["top_k"] = 0
    wanted["response_format"] = read_format(wanted.pop("response_format", None))
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
    if 0 < request.temperature < COOLEST:
        rule = f"at least {COOLEST:g}, or 0 for the most probable token each time"
        raise Refusal(f"temperature = {request.temperature:g}; {rule}", "temperature")
    if request.top_logprobs and not request.logprobs:
        raise Refusal("top_logprobs are returned with logprobs: true only", "top_logprobs")
    for tool in request.tools:
        _check_tool(tool)
    choice = read_choice(given.get("tool_choice"), given.get("parallel_tool_calls"), request.tools)
    messages = tuple(normal(message) for message in request.messages)
    return request.model_copy(update={"messages": messages, "tool_choice": choice})


def not_held(request: ChatRequest, why: str) -> Refusal | None:
    """Return the refusal of a request for a form of its answer, for policies whose sampling cannot enforce one."""
    if request.response_format is not None:
        remedy = "Describe the form in the messages and check the reply, or announce a tool whose arguments have it"
        what = f"response_format = {shortened(request.response_format, 40)}"
        return Refusal(f"{what}: sampling is not held to a form {why}. {remedy}", "response_format")
    if request.tool_choice.kind == "required":
        what = f"tool_choice = {request.tool_choice.name or 'required'}"
        return Refusal(f"{what}: sampling is not held to a form {why}. Leave it out, or take auto", "tool_choice")
    return None


def refuse_unknown(given: Mapping[str, object], known: Collection[str]) -> None:
    """Raise Unsupported for an unknown parameter, with the most similar known one."""
    for name in given:
        if name not in known:
            raise Unsupported(f"There is no parameter '{name[:64]}'. {suggest(name[:64], sorted(known))}", name)


def normal(message: JsonMapping) -> JsonObject:
    """Return a message with only the parts that matter: role, content as one text, tool calls, and the call it answers.

    Raises:
        Refusal: if the message has no role, or content that is not text.
    """
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise Refusal(f"A message has no role: {shortened(dict(message))}", "messages")
    plain: JsonObject = {"role": "system" if role == "developer" else role, "content": _text(message)}
    if calls := message.get("tool_calls"):
        if not isinstance(calls, list):
            raise Refusal(f"tool_calls = {shortened(calls)}; it must be a list of calls", "messages")
        plain["tool_calls"] = [_call(call) for call in calls]
    for name in ("tool_call_id", "name"):
        if message.get(name):
            if not isinstance(message[name], str):
                raise Refusal(f"{name} = {shortened(message[name])}; it must be a text", "messages")
            plain[name] = message[name]
    return plain


def same(one: JsonMapping, other: JsonMapping) -> bool:
    """Return whether two normalised messages are equal, ignoring spaces around the text and ids of calls."""
    return _essence(one) == _essence(other)


def continues(earlier: Sequence[Mapping[str, object]], later: Sequence[Mapping[str, object]]) -> bool:
    """Return whether a conversation begins with all of an earlier one and continues it."""
    return len(later) > len(earlier) and all(map(same, earlier, later))


def _essence(message: JsonMapping) -> tuple[object, ...]:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return message["role"], message["content"].strip(), [(call["name"], call["arguments"]) for call in calls]


def _text(message: JsonMapping) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(map(_is_text, content)):
        return "".join(part["text"] for part in content)
    wrong = next((part for part in content if not _is_text(part)), None) if isinstance(content, list) else content
    rule = "it must be a text, or a list of parts {'type': 'text', 'text': …}; pictures, sounds and files are not read"
    raise Refusal(f"The content of a message holds {shortened(wrong, 80)}; {rule}", "messages")


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _call(call: object) -> JsonObject:
    """Return a tool call with its arguments as an object if they are one, because chat templates write them out."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refusal(f"A tool call must have a function with a name; this one does not: {shortened(call)}", "messages")
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError, Refusal):
            found = json.loads(arguments)
            check_plain(found)
            arguments = found
    elif not isinstance(arguments, dict):
        raise Refusal(f"arguments = {shortened(arguments)}; it must be an object, or the JSON text of one", "messages")
    number = call.get("id") or ""
    if not isinstance(number, str):
        raise Refusal(f"The id of a tool call is {shortened(number)}; it must be a text", "messages")
    return {"id": number, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _check_tool(tool: Mapping[str, object]) -> None:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refusal(f"A tool must be of type 'function' and have a function with a name: {shortened(tool)}", "tools")
    if not function["name"] or not isinstance(function.get("parameters", {}) or {}, dict):
        rule = "its name must not be empty, and its parameters are a JSON schema, an object"
        raise Refusal(f"A tool is {shortened(function)}; {rule}", "tools")


def _in_words(error: pydantic.ValidationError) -> Refusal:
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else "body"
    if first["type"] == "extra_forbidden":
        known = set(ChatRequest.model_fields) - INNER
        return Unsupported(f"There is no parameter '{name[:64]}'. {suggest(name[:64], sorted(known))}", name)
    if first["type"] == "missing":
        return Refusal(f"'{name}' is missing", name)
    if first["type"] == "less_than_equal":
        return Refusal(f"{name} = {shortened(first['input'])}; at most {first['ctx']['le']}", name)
    return Refusal(f"{name} = {json.dumps(first['input'], default=str)[:200]}: {first['msg']}", name)
