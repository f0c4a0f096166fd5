"""The characters that texts are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

PRINTABLE = "".join(chr(code) for code in range(32, 127)) + "\n"
"""Printable ASCII and the newline: what a character tokenizer knows where nothing lists its characters."""


def characters_in(value: object) -> set[str]:
    """Return the characters of every text in a value of JSON, keys left out."""
    return {char for text in _texts(value) for char in text}


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for each in value.values() for text in _texts(each))
    elif isinstance(value, list | tuple):
        yield from (text for each in value for text in _texts(each))
