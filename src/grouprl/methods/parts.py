"""Every registered part as plain data, for `grouprl parts`."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from grouprl.algorithms.building import checked
from grouprl.algorithms.part import NESTED, PARTS, RULES, Part
from grouprl.core.json_types import JsonObject
from grouprl.methods.compose import LISTS, part_data
from grouprl.methods.describe import type_words
from grouprl.methods.render import value_words

REQUIRED = "required"


@dataclass(frozen=True)
class Described:
    """Description of a part. `words`, `formula` and `needs` are those at its defaults, empty if it has none."""

    name: str
    kind: str
    rule: str
    """Arguments and result of a part of its kind."""
    summary: str
    explanation: str
    words: str
    formula: str
    needs: tuple[str, ...]
    couples: str
    settings: tuple[JsonObject, ...]
    metrics: Mapping[str, str]
    module: str
    example: str
    """Example of its use in a configuration."""

    def data(self) -> JsonObject:
        """Return the description as plain data."""
        return asdict(self)

    def line(self) -> JsonObject:
        """Return the line of the part in a listing."""
        settings = tuple(row["name"] for row in self.settings)
        return {"name": self.name, "kind": self.kind, "rule": self.rule, "summary": self.summary, "settings": settings}


def described(kind: str = "", name: str = "") -> list[Described]:
    """Return the parts of a kind and of a name ('' for all), sorted by kind and name; only these are imported."""
    kinds = [each for each in RULES if kind in ("", each)]
    return [describe_part(PARTS[k][n]) for k in kinds for n in sorted(PARTS[k]) if name in ("", n)]


def listing() -> list[dict[str, object]]:
    """Return the line of each part, kind by kind, as `grouprl parts` lists them."""
    return [each.line() for each in described()]


def describe_part(part: type[Part]) -> Described:
    """Return the description of a part's class."""
    settings = tuple(_settings(part))
    needed = any(row["default"] == REQUIRED for row in settings)
    plain = None if needed else checked(part, {}, f"the {part.kind} part '{part.name}'")
    doc = inspect.cleandoc(part.__doc__ or "")
    words = plain.words() if plain else ""
    item = f"{{part: {part.name}}}"
    place = f"add: {{{part.kind}: [{item}]}}" if part.kind in LISTS else f"{part.kind}: {item}"
    place = f"objective: {{part: pair, {place}}}" if part.kind in NESTED else place
    return Described(
        name=part.name,
        kind=part.kind,
        rule=RULES[part.kind],
        summary=doc.split("\n\n")[0].replace("\n", " ") or words,
        explanation=doc or words,
        words=words,
        formula=plain.formula() if plain else "",
        needs=tuple(plain.needs()) if plain else (),
        couples=part.couples,
        settings=settings,
        metrics={name: metric.words for name, metric in part.metrics.items()},
        module=part.__module__,
        example=f"method: {{base: grpo, {place}}}",
    )


def _settings(part: type[Part]) -> list[dict[str, object]]:
    """Return name, default, default as text and type of each setting."""
    hints = typing.get_type_hints(part, include_extras=True)
    rows = []
    for field in dataclasses.fields(part):  # type: ignore[arg-type]
        default = _default(field)
        default = part_data(default) if isinstance(default, Part) else default
        shown = REQUIRED if default == REQUIRED else value_words(default)
        types = type_words(hints.get(field.name, Any))
        rows.append({"name": field.name, "default": default, "shown": shown, "type": types})
    return rows


def _default(field: dataclasses.Field[object]) -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    return REQUIRED if field.default_factory is dataclasses.MISSING else field.default_factory()
