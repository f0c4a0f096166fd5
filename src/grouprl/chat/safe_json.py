"""Reading untrusted JSON: depth and number of values are bounded, texts encodable and numbers finite."""

from __future__ import annotations

import json
import math
from typing import NoReturn

from grouprl.chat.refusal import Refusal

DEEPEST = 64
MOST_VALUES = 200_000
MOST_MARKS = 1_000_000
"""Largest number of commas and brackets in a body, including those in texts, to bound the memory for reading it."""


def read_json(body: bytes) -> object:
    """Return the JSON value in a body.

    Raises:
        Refusal: if the body is not JSON (NaN is not), is nested too deeply, or holds too many values, a number that is
            too long or too large, or half a character.
    """
    if sum(map(body.count, (b",", b"[", b"{"))) > MOST_MARKS:
        raise Refusal(f"The body holds too many values; at most {MOST_VALUES}")
    try:
        value = json.loads(body, parse_constant=refuse_constant)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        what = "a number is too long" if "integer string conversion" in str(error) else str(error)
        raise Refusal(f"The body is not JSON: {what}") from None
    check_plain(value)
    return value


def read_text(text: str) -> object:
    """Return the JSON value that a text is.

    Raises:
        Refusal: as `read_json`.
    """
    return read_json(text.encode("utf-8", "surrogatepass"))


def check_plain(value: object) -> None:
    """Raise Refusal if a value that was read from JSON exceeds a bound."""
    left, seen = [(value, 1)], 0
    while left:
        each, depth = left.pop()
        seen += 1
        if seen > MOST_VALUES:
            raise Refusal(f"The body holds too many values; at most {MOST_VALUES}")
        if isinstance(each, str):
            _check_text(each)
        elif isinstance(each, float) and not math.isfinite(each):
            raise Refusal("The body holds a number that is too large")
        elif isinstance(each, dict | list):
            if depth > DEEPEST:
                raise _too_deep()
            inner = [*each.keys(), *each.values()] if isinstance(each, dict) else each
            left.extend((item, depth + 1) for item in inner)


def _check_text(text: str) -> None:
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise Refusal(f"A text holds half a character ({half}), which no tokenizer can read") from None


def refuse_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN and the infinities, which Python writes but JSON does not have."""
    raise ValueError(f"{name} is not a JSON value")


def _too_deep() -> Refusal:
    return Refusal(f"The body is nested too deeply; at most {DEEPEST} levels")
