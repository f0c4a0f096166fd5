"""The ends of tool calls in text: the closing sign of a call, and arguments that hold one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from grouprl.chat.calls import call_of
from grouprl.chat.scanning import Found, closed, joined
from grouprl.chat.turn_content import Call, Malformed
from grouprl.core.errors import InputError, shortened

Calls = list[Call | Malformed]
MOST_TRIES = 16
"""Largest number of closing signs tried as the end of a call: earlier ones may be part of its texts."""


def dumped(value: object) -> str:
    """Return a value as JSON that keeps letters of all scripts."""
    return json.dumps(value, ensure_ascii=False)


def call_named(name: str, arguments: object) -> Call | Malformed:
    """Return a call from its name and arguments, or its fault."""
    if not name:
        return Malformed("a call without a name")
    return arguments if isinstance(arguments, Malformed) else call_of({"name": name, "arguments": arguments})


def ended(call: Call | Malformed, text: str, at: int, end: str) -> Found:
    """Return a call if `end` follows it, else its fault."""
    behind = -1 if isinstance(call, Malformed) else closed(text, at, end) if at >= 0 else -1
    if behind < 0 and isinstance(call, Call):
        call = Malformed("the call is not JSON: something follows it")
    return [call], max(behind, 0)


def first_sound(text: str, close: str, read: Callable[[str], Calls], before: str) -> tuple[Calls, str]:
    """Return the calls before the first `close` that leaves them sound, or else before the first `close`."""
    stop, first = -1, text.find(close)
    for _ in range(MOST_TRIES):
        stop = text.find(close, stop + 1)
        if stop < 0:
            break
        calls = read(text[:stop])
        if not any(isinstance(call, Malformed) for call in calls):
            return calls, joined([before, text[stop + len(close) :]])
    return read(text[:first]), joined([before, text[first + len(close) :]])


def without(text: str, signs: Sequence[str]) -> str:
    """Return a text; raise InputError if it holds one of the signs that would end it."""
    found = next((sign for sign in signs if sign in text), None)
    if found is not None:
        raise InputError(
            f"the argument {shortened(text, 80)} cannot be written in this syntax of tool calls",
            f"it holds {found!r}, which would end it",
            "Set sampling.tool_calls to a syntax that writes JSON, such as hermes",
        )
    return text
