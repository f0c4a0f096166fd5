"""One call of a tool, with the check of its arguments: its result, or a description of its error, as text."""

from __future__ import annotations

import dataclasses
import json
import re
import traceback
from collections.abc import Mapping
from typing import Any

import pydantic

from grouprl.chat.turn_content import Status
from grouprl.core.json_types import JsonMapping
from grouprl.tools.definition import Tool, ToolError

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{4,}")
"""The memory address in Python's default text of an object."""


def attempt(found: Tool, given: JsonMapping | str, traces: bool, longest: int) -> tuple[Status, str]:
    """Check the arguments of a call, call the tool and return (status, text): its result, or what went wrong."""
    try:
        arguments = found.check(given)
    except ToolError as error:
        return "malformed", shortened(_said(error), longest)
    except TimeoutError as error:
        return "timeout", shortened(f"error: {_said(error)}", longest)
    except Exception as error:  # arguments too deeply nested or long, or a validator of the user's that fails
        return "malformed", f"the call cannot be read: {type(error).__name__}"
    try:
        return "ok", shortened(shown(found.function(**arguments)), longest)
    except ToolError as error:
        return "error", shortened(f"error: {_said(error)}", longest)
    except TimeoutError as error:
        return "timeout", shortened(f"error: {_said(error)}", longest)
    except (Exception, SystemExit) as error:
        text = traceback.format_exc() if traces else f"error: {type(error).__name__}: {_said(error)}"
        return "error", shortened(text, longest)


def shown(value: object) -> str:
    """Return a tool's result as text: a string unchanged, anything else as JSON, objects by their fields or own text.

    Raises:
        ToolError: for an object with neither: its default text holds a memory address, which differs in every run.
    """
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError):
        return _in_words(value)


def _plain(value: Any) -> object:
    """Return the JSON value of an object: its fields, the sorted members of a set, or its own text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump()
    if isinstance(value, set | frozenset):
        return sorted(value, key=lambda each: (type(each).__name__, shown(each)))
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    if callable(getattr(value, "tolist", None)):  # arrays and tensors
        return value.tolist()
    if type(value).__str__ is object.__str__ and type(value).__repr__ is object.__repr__:
        fields = {name: each for name, each in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
        if fields:
            return fields
    return _in_words(value)


def _in_words(value: object) -> str:
    text = str(value)
    if ADDRESS.search(text):
        raise ToolError(
            f"the result is an object of type {type(value).__name__}, which has no text of its own: a tool returns a "
            "text, a number, a list, a dict or a dataclass"
        )
    return text


def shortened(text: str, longest: int) -> str:
    """Return the text, truncated if it is too long."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _said(error: BaseException) -> str:
    """Return the message of an error; computing it may itself fail."""
    try:
        return str(error)
    except Exception as another:
        return f"its message raised {type(another).__name__}"
