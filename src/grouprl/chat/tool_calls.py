"""Tool calls in a policy's text, in the form of the chat completions protocol."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from grouprl.chat.scanning import after_space, value_at
from grouprl.chat.syntaxes import JSON
from grouprl.chat.turn_content import Call, Malformed, Said
from grouprl.core.json_types import JsonMapping, JsonObject

MOST_CALLS = 64
"""Largest number of calls of one turn; a turn with more of them counts as plain text."""


def said_in(text: str) -> Said:
    """Return the contents of a text: as the policy's own syntax has already read them, else from JSON in tags."""
    return getattr(text, "said", None) or JSON.read(text)


def protocol_calls(found: Said, text: str, about: str, tools: Sequence[JsonMapping] = ()) -> list[dict[str, object]]:
    """Return the calls of a turn for the protocol; none if one of them cannot be read, or they are too many.

    `about` and the text determine the ids. Arguments that a syntax writes as text get the types in the schemas of
    `tools`.
    """
    schemas = {each["function"]["name"]: each["function"].get("parameters") or {} for each in tools}
    if len(found.calls) > MOST_CALLS:
        return []
    calls: list[JsonObject] = []
    for number, call in enumerate(found.calls):
        if isinstance(call, Malformed):
            return []
        mark = hashlib.blake2b(f"{about}\0{text}\0{number}".encode(), digest_size=9).hexdigest()
        given = typed(call, schemas[call.name].get("properties", {})) if _to_type(call, schemas) else call.arguments
        function = {"name": call.name, "arguments": json.dumps(given, ensure_ascii=False)}
        calls.append({"id": f"call_{mark}", "type": "function", "function": function})
    return calls


def _to_type(call: Call, schemas: Mapping[str, object]) -> bool:
    schema = schemas.get(call.name)
    return call.untyped and isinstance(schema, Mapping) and isinstance(schema.get("properties"), Mapping)


def typed(call: Call, properties: dict[str, object]) -> dict[str, object]:
    """Return the arguments of an untyped call with the types in a tool's schema; text arguments stay text."""
    given = dict(call.arguments) if not isinstance(call.arguments, str) else {}
    return {name: _typed(value, properties.get(name, {})) for name, value in given.items()}


def _typed(value: object, schema: object) -> object:
    if not isinstance(value, str) or _takes_text(schema):
        return value
    found, end = value_at(value, 0)
    return value if isinstance(found, Malformed) or after_space(value, end) < len(value) else found


def _takes_text(schema: object) -> bool:
    """Return whether the JSON schema of an argument allows text."""
    if not isinstance(schema, dict):
        return True
    kinds = schema.get("type")
    choices = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return "string" in ([kinds] if isinstance(kinds, str) else kinds or ()) or any(map(_takes_text, choices))
