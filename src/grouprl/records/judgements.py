"""Judgements of a user at the beginning of a prompt, as text."""

from __future__ import annotations

from collections.abc import Iterable

BETWEEN = "\x1f"
"""The unit separator of ASCII: stands after a judgement's prompt, and after its better completion."""
END = "\x1e"
"""The record separator of ASCII: ends a judgement."""


def judged_prompt(judgements: Iterable[tuple[str, str, str]], prompt: str) -> str:
    """Return the prompt after judgements of its user, each a prompt, the better completion and the worse one."""
    return "".join(f"{BETWEEN.join(each)}{END}" for each in judgements) + prompt
