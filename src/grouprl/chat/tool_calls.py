"""Tool calls in what a policy writes: <tool_call>{"name": …, "arguments": {…}}</tool_call>, as Hermes and Qwen do."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


def split_calls(text: str, about: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the text beside the calls, and the calls as the protocol has them.

    A call that cannot be read makes the whole text plain content: the agent sees what was written and no call. Ids are
    determined by `about` and the text.
    """
    calls: list[dict[str, Any]] = []
    for number, written in enumerate(CALL.findall(text)):
        function = _function(written)
        if function is None:
            return text, []
        mark = hashlib.blake2b(f"{about}\0{text}\0{number}".encode(), digest_size=9).hexdigest()
        calls.append({"id": f"call_{mark}", "type": "function", "function": function})
    return (CALL.sub("", text).strip() if calls else text), calls


def write_call(name: str, arguments: dict[str, Any]) -> str:
    """Return a call as a policy writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _function(written: str) -> dict[str, str] | None:
    try:
        found = json.loads(written)
    except json.JSONDecodeError:
        return None
    arguments = found.get("arguments", {}) if isinstance(found, dict) else None
    if not isinstance(arguments, dict) or not isinstance(found.get("name"), str):
        return None
    return {"name": found["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
