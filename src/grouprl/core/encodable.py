"""Text for outputs that are not UTF-8: characters that an encoding lacks become the nearest that it has."""

from __future__ import annotations

import codecs
import json
import sys
import unicodedata
from io import TextIOWrapper

NEAREST = {
    **dict.fromkeys("–—−‑─━", "-"),
    **dict.fromkeys("·•…", "."),
    **dict.fromkeys("“”„", '"'),
    **dict.fromkeys("‘’", "'"),
    **dict.fromkeys("→⇒▸≥", ">"),
    **dict.fromkeys("←≤", "<"),
    **dict.fromkeys("│┃", "|"),
    "×": "x",
    "✓": "+",
    "✗": "x",
    "⏎": "/",
    "≠": "#",
    "≈": "~",
    "∞": "8",
    "█": "#",
}
"""A replacement of one column for each character that messages and tables use."""
PLAIN, ESCAPED = "grouprl-nearest", "grouprl-escaped"
"""Names of the ways to write what an encoding lacks: in the nearest character, and as JSON escapes."""


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_sign, error.object[error.start : error.end])), error.end


def _sign(char: str) -> str:
    name = unicodedata.name(char, "")
    if name.startswith("GREEK "):
        initial = name.rpartition(" LETTER ")[2][:1]
        return initial.lower() if " SMALL " in name else initial
    plain = NEAREST.get(char) or unicodedata.normalize("NFKD", char)[0]
    return plain if plain.isascii() and plain.isprintable() else "?"


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(PLAIN, _nearest)
codecs.register_error(ESCAPED, _escaped)


def encodable(text: str, encoding: str) -> str:
    """Return the text with characters of the same width in place of those that the encoding lacks."""
    if text.isascii() or encoding.lower().startswith("utf"):
        return text
    try:
        return text.encode(encoding, PLAIN).decode(encoding)
    except LookupError:
        return text


def write_any_text(*, as_json: bool) -> None:
    """Let standard output and error write any text, whatever their encoding; JSON is then written in ASCII."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            encoding, errors = ("ascii", ESCAPED) if as_json else (stream.encoding, PLAIN)
            stream.reconfigure(encoding=encoding, errors=errors)
