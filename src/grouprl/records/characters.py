"""The characters that texts are made of."""

from __future__ import annotations

from collections.abc import Mapping

PRINTABLE = "".join(chr(code) for code in range(32, 127)) + "\n"
"""Printable ASCII and the newline: what a character tokenizer knows where nothing lists its characters."""


def characters_in(value: object) -> set[str]:
    """Return the characters of every text in a value of JSON, keys left out."""
    found: set[str] = set()
    waiting = [value]
    while waiting:  # no recursion: data sets of a million rows come this way, and a set takes in a text at once
        each = waiting.pop()
        if isinstance(each, str):
            found.update(each)
        elif isinstance(each, dict | Mapping):
            waiting.extend(each.values())
        elif isinstance(each, list | tuple):
            waiting.extend(each)
    return found
