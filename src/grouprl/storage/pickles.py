"""Messages about files that would run code if they were read; they never advise reading such a file unprotected."""

from __future__ import annotations

import re

GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
ADVICE = ("weights_only", "add_safe_globals", "safe_globals", "torch.load")


def refusal(error: Exception) -> str:
    """Return in one line why a file was refused, without a library's advice to read it unprotected."""
    text = str(error)
    if (found := GLOBAL.search(text)) is not None:
        return f"it names {found[1]}, which is not data: reading it could run code, so it is refused"
    line = text.partition("\n")[0][:300]
    return "it holds something that is not data, so it is refused" if any(word in line for word in ADVICE) else line
