"""Finding calls in a turn from their beginnings on, so that signs inside of an argument's text are no signs."""

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
"""Calls that were read, and where they end."""


def sound(value: object) -> Malformed | None:
    """Return what makes a value that was read unusable (half a character, no finite number, too deep), if anything."""
    try:
        check_plain(value)
    except Refusal as error:
        return Malformed(f"the call cannot be used: {error.message.replace('The body', 'it')}"[:LONGEST_WHAT])
    return None


def value_at(text: str, at: int) -> tuple[object | Malformed, int]:
    """Return the JSON value that stands at a place, white space in front left out, and where it ends."""
    begin = after_space(text, at)
    try:
        found, end = _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError) as error:
        return Malformed(f"the call is not JSON: {error}"[:LONGEST_WHAT]), begin
    return sound(found) or found, end


def after_space(text: str, at: int) -> int:
    """Return where white space that begins at a place ends."""
    found = SPACE.match(text, at)
    assert found is not None
    return found.end()


def objects(text: str, at: int = 0) -> Iterator[tuple[object | Malformed, int]]:
    """Yield the JSON values that stand one after another, with where each ends; the first flaw ends it."""
    while at < len(text):
        found, at = value_at(text, at)
        yield found, at
        between = BETWEEN.match(text, at)
        assert between is not None
        at = between.end()
        if isinstance(found, Malformed) or not text.startswith(("{", "["), at):
            return


def closed(text: str, at: int, close: str) -> int:
    """Return where `close` ends if it stands at a place behind white space; -1 where it does not."""
    begin = after_space(text, at)
    return begin + len(close) if text.startswith(close, begin) else -1


def scanned(
    text: str, sign: re.Pattern[str], close: str, read: Callable[[str, int], Found]
) -> tuple[list[Call | Malformed], list[str]]:
    """Return the calls behind each `sign`, and the pieces of text beside them.

    `read` is called with the text and where a sign ends. Where what it finds is no call, the text goes on behind the
    next `close`, or at the next sign where that comes first.
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
    """Return whether no `close` follows a place before the next sign."""
    behind = sign.search(text, at)
    return close not in text[at : behind.start() if behind else len(text)]


def joined(pieces: Sequence[str]) -> str:
    """Return the text beside calls as one."""
    return "\n".join(piece.strip() for piece in pieces if piece.strip())


def _after_flaw(text: str, at: int, sign: re.Pattern[str], close: str) -> int:
    behind = sign.search(text, at)
    limit = behind.start() if behind else len(text)
    end = text.find(close, at, limit) if close else -1
    return limit if end < 0 else end + len(close)
