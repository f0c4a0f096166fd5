"""Chat messages in a form that a template shows completely: messages that it does not support are put into others."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from grouprl.chat.calls import Form
from grouprl.chat.syntaxes import JSON
from grouprl.chat.turn_content import Call
from grouprl.core.json_types import JsonMapping, JsonObject

Messages = Sequence[JsonMapping]
Plain = list[JsonObject]
Use = Literal["system", "late_system", "tools", "results", "users", "roles"]
KNOWN = ("system", "user", "assistant", "tool")
SHORT_ID = 9
"""Number of characters of a call's id in templates that prescribe it."""


@dataclass(frozen=True)
class TemplateFacts:
    """Facts about what a template shows by itself. Anything that it does not show is carried in other messages."""

    system: bool = True
    """Whether it shows a system message at the beginning."""
    system_beside_tools: bool = True
    """Whether it does so when tools are announced and used."""
    late_system: bool = True
    """Whether it shows a later system message in its place; some templates move it in front of what came before."""
    tools: Literal["argument", "system", "no"] = "argument"
    """The place from which the template takes tools: its argument, the system message (Phi 4 mini), or none."""
    calls: bool = True
    """Whether it shows the `tool_calls` of an assistant's message."""
    text_arguments: bool = False
    """Whether the arguments of calls must be a string of JSON."""
    short_ids: bool = False
    """Whether ids of calls must have nine characters."""
    results: Literal["text", "calls", "no"] = "text"
    """The cases in which it shows a tool's message: after any assistant's message, only after one with `tool_calls`, or
    never."""
    users: bool = True
    """Whether it shows two consecutive user messages."""
    roles: bool = True
    """Whether it shows messages of unknown roles."""


def uses_of(messages: Messages, tools: Messages = ()) -> set[Use]:
    """Return the features of a template that a conversation needs."""
    roles = [str(message.get("role")) for message in messages]
    found: set[Use] = {"tools", "results"} if tools else set()
    if "tool" in roles:
        found.add("results")
    if roles[:1] == ["system"]:
        found.add("system")
    if "system" in roles[1:]:
        found.add("late_system")
    if any(pair == ("user", "user") for pair in itertools.pairwise(roles)):
        found.add("users")
    if any(role not in KNOWN for role in roles):
        found.add("roles")
    return found


def carried(messages: Messages, tools: Messages, facts: TemplateFacts, form: Form = JSON) -> tuple[Plain, Plain]:
    """Return messages and tools in the form in which the template shows all of them.

    The form of a message depends only on the messages before it, so that a longer conversation begins as a shorter one.
    `form` is the syntax of calls if the template does not write them.
    """
    announced = [dict(tool) for tool in tools]
    plain = list(_one_by_one(messages, facts, form))
    if announced and facts.tools == "no":
        plain, announced = _in_front(plain, form.announce(announced)), []
    elif announced and facts.tools == "system":
        plain, announced = _in_system(plain, announced), []
    if plain and plain[0]["role"] == "system" and not (facts.system_beside_tools if announced else facts.system):
        plain = _onto_user(plain[0]["content"], plain[1:])
    return (plain if facts.users else _merged(plain)), announced


def _one_by_one(messages: Messages, facts: TemplateFacts, form: Form) -> Iterator[JsonObject]:
    """Yield messages with roles, calls and results in a form that the template shows."""
    names: dict[str, str] = {}
    called = False
    for place, given in enumerate(messages):
        message = dict(given)
        role = message["role"]
        if role == "assistant":
            message, names = _calling(message, facts, form)
            called = bool(names)
        elif role == "tool":
            if facts.results == "no" or (facts.results == "calls" and not called):
                message = {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
            elif names:
                call_id = message.get("tool_call_id")
                message["tool_call_id"] = names.pop(call_id if call_id in names else next(iter(names)))
        elif role == "system" and place and not facts.late_system:
            message = {"role": "user", "content": message["content"]}
        elif role not in KNOWN and not facts.roles:
            message = {"role": "user", "content": f"{role}: {message['content']}"}
        if role != "tool" and role != "assistant":
            called = False
        yield message


def _calling(message: JsonObject, facts: TemplateFacts, form: Form) -> tuple[JsonObject, dict[str, str]]:
    """Return an assistant's message as the template takes it, and a mapping from the old ids of its calls to the new
    ones.
    """
    calls = message.get("tool_calls") or ()
    if not calls:
        return message, {}
    if not facts.calls:
        told = [Call(call["function"]["name"], _object(call["function"].get("arguments"))) for call in calls]
        parts = [part for part in (message.get("content") or "", form.write_all(told)) if part]
        return {"role": "assistant", "content": "\n".join(parts)}, {}
    made = [_call(call, number, facts) for number, call in enumerate(calls)]
    names = {
        str(call.get("id") or number): each["id"] for number, (call, each) in enumerate(zip(calls, made, strict=True))
    }
    return {**message, "tool_calls": made}, names


def _call(call: JsonMapping, number: int, facts: TemplateFacts) -> JsonObject:
    function, name = call["function"], str(call.get("id") or f"call_{number:04}")
    arguments: object = _object(function.get("arguments"))
    if facts.text_arguments:
        arguments = json.dumps(arguments, ensure_ascii=False)
    if facts.short_ids and len(name) != SHORT_ID:
        name = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()[:SHORT_ID]
    return {"id": name, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _object(arguments: JsonMapping | str | None) -> JsonMapping:
    """Return the arguments of a call as an object, if they are a string that holds one."""
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return {"arguments": arguments}
    return found if isinstance(found, dict) else {"arguments": found}


def _in_front(plain: Plain, told: str) -> Plain:
    """Return messages with the text added to the system message, or in a new one."""
    if plain and plain[0]["role"] == "system":
        return [{**plain[0], "content": f"{plain[0]['content']}\n\n{told}"}, *plain[1:]]
    return [{"role": "system", "content": told}, *plain]


def _in_system(plain: Plain, tools: Plain) -> Plain:
    """Return messages whose system message holds the tools, in the form for Phi 4 mini."""
    first = plain[0] if plain and plain[0]["role"] == "system" else {"role": "system", "content": ""}
    told = json.dumps([tool.get("function", tool) for tool in tools], ensure_ascii=False)
    return [{**first, "tools": told}, *(plain[1:] if plain and first is plain[0] else plain)]


def _onto_user(told: str, rest: Plain) -> Plain:
    """Return messages with a text in front of the first user message."""
    at = next((i for i, message in enumerate(rest) if message["role"] == "user"), None)
    if at != 0:
        return [{"role": "user", "content": told}, *rest]
    return [{**rest[0], "content": f"{told}\n\n{rest[0]['content']}"}, *rest[1:]]


def _merged(plain: Plain) -> Plain:
    """Return messages in which consecutive user messages are merged."""
    made: Plain = []
    for message in plain:
        if made and message["role"] == made[-1]["role"] == "user":
            made[-1] = {**made[-1], "content": f"{made[-1]['content']}\n\n{message['content']}"}
        else:
            made.append(message)
    return made


def roles(plain: Plain) -> str:
    """Return the roles of messages as text for an error message."""
    shown = [str(message.get("role")) for message in plain]
    return ", ".join(shown[:8]) + ", …" * (len(shown) > 8)
