"""Tool calls in what a policy writes, as the chat completions protocol has them."""

from __future__ import annotations

import hashlib
import json

from grouprl.chat.said import Call, Malformed, Said
from grouprl.chat.syntaxes import JSON
from grouprl.core.json_types import JsonObject

MOST_CALLS = 64
"""Calls of one turn; with more of them a turn is a text."""


def said_in(text: str) -> Said:
    """Return what a text holds: by the policy's own syntax where that has read it already, else JSON in tags."""
    return getattr(text, "said", None) or JSON.read(text)


def protocol_calls(found: Said, text: str, about: str) -> list[dict[str, object]]:
    """Return the calls of a turn for the protocol; none where one of them cannot be read, or they are too many.

    Ids are determined by `about` and the text.
    """
    if len(found.calls) > MOST_CALLS:
        return []
    calls: list[JsonObject] = []
    for number, call in enumerate(found.calls):
        if isinstance(call, Malformed):
            return []
        mark = hashlib.blake2b(f"{about}\0{text}\0{number}".encode(), digest_size=9).hexdigest()
        function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
        calls.append({"id": f"call_{mark}", "type": "function", "function": function})
    return calls


def split_calls(text: str, about: str) -> tuple[str, list[dict[str, object]]]:
    """Return the text beside the calls, and the calls as the protocol has them.

    A call that cannot be read makes the whole text plain content: the agent sees what was written and no call. So do
    more than `MOST_CALLS`.
    """
    found = said_in(text)
    calls = protocol_calls(found, text, about)
    return (found.beside if calls else str(text)), calls


def typed(call: Call, properties: dict[str, object]) -> dict[str, object]:
    """Return the arguments of an untyped call in the types that a tool's schema names: a text stays a text there."""
    given = dict(call.arguments) if not isinstance(call.arguments, str) else {}
    return {name: _typed(value, properties.get(name, {})) for name, value in given.items()}


def _typed(value: object, schema: object) -> object:
    if not isinstance(value, str) or _takes_text(schema):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _takes_text(schema: object) -> bool:
    """Whether an argument may be a text, by its JSON schema."""
    if not isinstance(schema, dict):
        return True
    kinds = schema.get("type")
    choices = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return "string" in ([kinds] if isinstance(kinds, str) else kinds or ()) or any(map(_takes_text, choices))
