"""The requested form of an answer: JSON, JSON under a schema, or tool calls, as the protocols express it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grouprl.chat.refusal import Refusal
from grouprl.core.errors import shortened
from grouprl.core.json_types import JsonMapping

LARGEST_SCHEMA = 100_000
"""Largest number of characters of a schema."""
CHOICES = {"auto": "auto", "none": "none", "required": "required", "any": "required"}
"""Values of `tool_choice` in OpenAI's and Anthropic's protocols, and their meaning here."""
NAMED = ("function", "tool")
"""Types of a `tool_choice` that names a tool."""


@dataclass(frozen=True)
class ToolChoice:
    """Tools that an answer must call: any or none (auto), none, at least one (required), or the one with this name."""

    kind: Literal["auto", "none", "required"] = "auto"
    name: str = ""
    several: bool = True
    """Whether a turn may hold several calls."""


def read_format(given: object) -> dict[str, object] | None:
    """Return the schema that an answer must follow; None for any text.

    Raises:
        Refusal: if the form is unknown, or the schema is invalid.
    """
    kind = given.get("type") if isinstance(given, dict) else given
    if kind in (None, "text"):
        return None
    if kind == "json_object" and isinstance(given, dict):
        return {"type": "object"}
    if kind != "json_schema":
        known = "use text, json_object or json_schema"
        raise Refusal(f"response_format = {shortened(kind, 40)} is not known; {known}", "response_format")
    nested = given.get("json_schema", given) if isinstance(given, dict) else None
    schema = nested.get("schema") if isinstance(nested, dict) else None
    if not isinstance(schema, dict):
        raise Refusal("response_format = json_schema has no schema; it must be an object", "response_format")
    if len(json.dumps(schema)) > LARGEST_SCHEMA:
        raise Refusal(f"response_format = a schema of more than {LARGEST_SCHEMA} characters", "response_format")
    return schema


def read_choice(given: object, parallel: object, tools: Sequence[JsonMapping]) -> ToolChoice:
    """Return the choice of tools that a request's `tool_choice` and `parallel_tool_calls` express.

    Raises:
        Refusal: if the choice is unknown, or names a tool that is not announced.
    """
    if not isinstance(parallel, bool | None):
        rule = "it must be true or false"
        raise Refusal(f"parallel_tool_calls = {shortened(parallel, 40)}; {rule}", "parallel_tool_calls")
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
        rule = "it must be auto, none, required, or an object that names a function"
        raise Refusal(f"tool_choice = {shortened(given, 80)}; {rule}", "tool_choice")
    if name not in [tool["function"]["name"] for tool in tools]:
        raise Refusal(f"tool_choice = {shortened(name, 80)}, which is not a tool of the request", "tool_choice")
    return ToolChoice("required", name, several=parallel is not False)
