"""Tool calls in what a policy writes: <tool_call>{"name": …, "arguments": {…}}</tool_call>, as Hermes and Qwen do."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from grouprl.chat.calls import FORMS, Malformed

CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


def split_calls(text: str, about: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the text beside the calls, and the calls as the protocol has them.

    A call that cannot be read makes the whole text plain content: the agent sees what was written and no call. Ids are
    determined by `about` and the text.
    """
    found = FORMS["json"].read(text).calls
    calls: list[dict[str, Any]] = []
    for number, call in enumerate(found):
        if isinstance(call, Malformed):
            return text, []
        mark = hashlib.blake2b(f"{about}\0{text}\0{number}".encode(), digest_size=9).hexdigest()
        function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
        calls.append({"id": f"call_{mark}", "type": "function", "function": function})
    return (CALL.sub("", text).strip() if calls else text), calls
