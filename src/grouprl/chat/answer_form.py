"""What a request wants its answer to be: JSON, JSON under a schema, a call of tools; as the protocols say it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grouprl.chat.refusal import Refusal
from grouprl.core.errors import shortened
from grouprl.core.json_types import JsonMapping

LARGEST_SCHEMA = 100_000
"""Characters of a schema at most."""
CHOICES = {"auto": "auto", "none": "none", "required": "required", "any": "required"}
"""What `tool_choice` may say, in OpenAI's and Anthropic's words."""
NAMED = ("function", "tool")
"""Types of `tool_choice` that name a tool."""


@dataclass(frozen=True)
class ToolChoice:
    """Whether tools are to be called: as the policy likes, not at all, at least one, or the one with this name."""

    kind: Literal["auto", "none", "required"] = "auto"
    name: str = ""
    several: bool = True
    """Whether a turn may hold several calls."""


def read_format(given: object) -> dict[str, object] | None:
    """Return the schema that an answer is to follow; None for any text.

    Raises:
        Refusal: a form that is not known, or a schema that is none.
    """
    kind = given.get("type") if isinstance(given, dict) else given
    if kind in (None, "text"):
        return None
    if kind == "json_object" and isinstance(given, dict):
        return {"type": "object"}
    if kind != "json_schema":
        known = "text, json_object and json_schema are"
        raise Refusal(f"response_format = {shortened(kind, 40)} is not known; {known}", "response_format")
    nested = given.get("json_schema", given) if isinstance(given, dict) else None
    schema = nested.get("schema") if isinstance(nested, dict) else None
    if not isinstance(schema, dict):
        raise Refusal("response_format = json_schema has no schema, which is an object", "response_format")
    if len(json.dumps(schema)) > LARGEST_SCHEMA:
        raise Refusal(f"response_format = a schema of more than {LARGEST_SCHEMA} characters", "response_format")
    return schema


def read_choice(given: object, parallel: object, tools: Sequence[JsonMapping]) -> ToolChoice:
    """Return what a request's `tool_choice` and `parallel_tool_calls` ask for.

    Raises:
        Refusal: a choice that is not known, or of a tool that is not announced.
    """
    kind = given.get("type") if isinstance(given, dict) else given
    if isinstance(given, dict) and given.get("disable_parallel_tool_use") is True:
        parallel = False
    if kind is None:
        return ToolChoice(several=parallel is not False)
    if isinstance(kind, str) and kind in CHOICES:
        found: Any = CHOICES[kind]
        if found == "required" and not tools:
            raise Refusal(f"tool_choice = {shortened(kind, 40)}, and the request announces no tools", "tool_choice")
        return ToolChoice(found, several=parallel is not False)
    function = given.get("function", given) if isinstance(given, dict) else None
    name = function.get("name") if isinstance(function, dict) and kind in NAMED else None
    if not isinstance(name, str):
        rule = "it is auto, none, required, or an object that names a function"
        raise Refusal(f"tool_choice = {shortened(given, 80)}; {rule}", "tool_choice")
    if name not in [tool["function"]["name"] for tool in tools]:
        raise Refusal(f"tool_choice = {shortened(name, 80)}, which is no tool of the request", "tool_choice")
    return ToolChoice("required", name, several=parallel is not False)
