"""Finding calls in a turn from left to right, so that signs inside the text of an argument do not count."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence

from grouprl.chat.refusal import Refusal
from grouprl.chat.safe_json import check_plain, refuse_constant
from grouprl.chat.turn_content import Call, Malformed

LONGEST_WHAT = 200
SPACE = re.compile(r"\s*")
BETWEEN = re.compile(r"[ \t\r\n;,]*")
_DECODER = json.JSONDecoder(parse_constant=refuse_constant)
Found = tuple[list[Call | Malformed], int]
"""Calls that were read, and their end position."""


def sound(value: object) -> Malformed | None:
    """Return the fault that makes a value unusable (half a character, infinite, too deep); None if it is sound."""
    try:
        check_plain(value)
    except Refusal as error:
        return Malformed(f"the call cannot be used: {error.message.replace('The body', 'it')}"[:LONGEST_WHAT])
    return None


def value_at(text: str, at: int) -> tuple[object | Malformed, int]:
    """Return the JSON value at a position, after any white space, and the position of its end."""
    begin = after_space(text, at)
    try:
        found, end = _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError) as error:
        return Malformed(f"the call is not JSON: {error}"[:LONGEST_WHAT]), begin
    return sound(found) or found, end


def after_space(text: str, at: int) -> int:
    """Return the first position from `at` on that is not white space."""
    found = SPACE.match(text, at)
    assert found is not None
    return found.end()


def objects(text: str, at: int = 0) -> Iterator[tuple[object | Malformed, int]]:
    """Yield consecutive JSON values and their end positions, up to the first fault."""
    while at < len(text):
        found, at = value_at(text, at)
        yield found, at
        between = BETWEEN.match(text, at)
        assert between is not None
        at = between.end()
        if isinstance(found, Malformed) or not text.startswith(("{", "["), at):
            return


def closed(text: str, at: int, close: str) -> int:
    """Return the end of `close` if it stands at a position, after any white space; else -1."""
    begin = after_space(text, at)
    return begin + len(close) if text.startswith(close, begin) else -1


def scanned(
    text: str, sign: re.Pattern[str], close: str, read: Callable[[str, int], Found]
) -> tuple[list[Call | Malformed], list[str]]:
    """Return the calls after each `sign`, and the pieces of other text.

    `read` is called with the text and the end of a sign. If it finds no call, the other text continues after the next
    `close`, or at the next sign if that comes first.
    """
    calls: list[Call | Malformed] = []
    beside, at = list[str](), 0
    while (begun := sign.search(text, at)) is not None:
        beside.append(text[at : begun.start()])
        found, at = read(text, begun.end())
        calls += found
        if any(isinstance(each, Malformed) for each in found):
            at = _after_flaw(text, begun.end(), sign, close)
    return calls, [*beside, text[at:]]


def unclosed(text: str, at: int, sign: re.Pattern[str], close: str) -> bool:
    """Return whether no `close` occurs between a position and the next sign."""
    behind = sign.search(text, at)
    return close not in text[at : behind.start() if behind else len(text)]


def joined(pieces: Sequence[str]) -> str:
    """Join the pieces of text around calls."""
    return "\n".join(piece.strip() for piece in pieces if piece.strip())


def _after_flaw(text: str, at: int, sign: re.Pattern[str], close: str) -> int:
    behind = sign.search(text, at)
    limit = behind.start() if behind else len(text)
    end = text.find(close, at, limit) if close else -1
    return limit if end < 0 else end + len(close)
