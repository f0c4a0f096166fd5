"""Grammars of a turn for llguidance: Lark with JSON schemas and single tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grouprl.core.json_types import JsonMapping

SPACE = "[ \\n]{0,4}"
"""White space between the parts of JSON: enough for any usual layout, but no endless blanks."""


@dataclass(frozen=True)
class JsonValue:
    """A JSON value under a schema."""

    schema: JsonMapping


@dataclass(frozen=True)
class Until:
    """Any text up to and including a sign."""

    sign: str


@dataclass(frozen=True)
class Pattern:
    """A text that matches a regular expression."""

    regex: str


@dataclass(frozen=True)
class OneOf:
    """A part in one of several forms."""

    parts: tuple[GrammarPart, ...]


@dataclass(frozen=True)
class Maybe:
    """An optional part."""

    part: GrammarPart


@dataclass(frozen=True)
class Many:
    """A part that occurs one or more times, with a separating text."""

    part: GrammarPart
    between: str


GrammarPart = str | JsonValue | Until | Pattern | OneOf | Maybe | Many | tuple[Any, ...]
"""A part of a grammar; a text stands for itself, a tuple for a sequence of parts."""


def lark_of(part: GrammarPart, single: Mapping[str, int]) -> str:
    """Return the Lark text of a grammar; `single` maps signs that only a special token can write to its id."""
    writer = _LarkWriter(single)
    start = writer.write(part)
    return "\n".join([f"start: {start}", *writer.rules, r"TEXT: /(.|\n)*/"]) + "\n"


@dataclass
class _LarkWriter:
    single: Mapping[str, int]
    rules: list[str] = field(default_factory=list)

    def write(self, part: GrammarPart) -> str:
        if isinstance(part, str):
            return self._literal(part)
        if isinstance(part, tuple):
            return "(" + " ".join(filter(None, map(self.write, part))) + ")"
        if isinstance(part, OneOf):
            return "(" + " | ".join(map(self.write, part.parts)) + ")"
        if isinstance(part, Maybe):
            return f"({self.write(part.part)})?"
        if isinstance(part, Many):
            inner = self.write(part.part)
            return f"{inner} ({self._literal(part.between)} {inner})*"
        if isinstance(part, Pattern):
            return f"/{part.regex}/"
        if isinstance(part, Until):
            return self._until(part.sign)
        guidance = {"whitespace_pattern": SPACE, "whitespace_flexible": True}
        return self._rule(f": %json {json.dumps({**part.schema, 'x-guidance': guidance})}")

    def _until(self, sign: str) -> str:
        if any(sign.startswith(each) for each in self.single):
            return f"TEXT {self._literal(sign)}"
        return self._rule(f"[suffix={json.dumps(sign, ensure_ascii=False)}]: TEXT")

    def _rule(self, body: str) -> str:
        self.rules.append(f"part{len(self.rules)}{body}")
        return f"part{len(self.rules) - 1}"

    def _literal(self, text: str) -> str:
        # Longest first: of two signs of which one begins the other, the pattern takes the first that fits.
        signs = "|".join(map(re.escape, sorted(self.single, key=len, reverse=True)))
        pieces = re.split(f"({signs})", text) if signs else [text]
        written = (
            f"<[{self.single[each]}]>" if each in self.single else json.dumps(each, ensure_ascii=False)
            for each in pieces
            if each
        )
        return " ".join(written)
