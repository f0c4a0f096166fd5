"""docs/configuration.md, from the schema: every key, what it may be, what holds when it is not given, what it means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

from grouprl.config.run import Config
from grouprl.config.sections import Section

HEAD = """<!-- Made from src/grouprl/config by scripts/generate_docs.py. Edit the docstrings there, not this page. -->
# Configuration

A run is a YAML file; every key can also be given as `--set key=value`. Keys that do not exist are refused, with the
nearest name. `grouprl plan FILE` shows what a run comes to, with the origin of every value, and the run folder's
`config.yaml` has all of them written out. Paths are relative to the file they stand in. Lengths are in tokens, times in
seconds.

A part of a method is named under `method`: `grouprl methods`. What a `task` takes: `grouprl tasks NAME`.
"""


def configuration_page() -> str:
    """Return the page: a table of what stands at the top, then one per section."""
    top = [_row(name, field) for name, field in Config.model_fields.items() if _section(field) is None]
    parts = [HEAD, _table(top)]
    for path, section in sections(Config):
        words = " ".join((section.__doc__ or "").split())
        rows = [_row(f"{path}.{name}", field) for name, field in section.model_fields.items() if not _section(field)]
        parts += [f"## {path}\n", f"{words}\n", _table(rows)]
    return "\n".join(parts)


def sections(owner: type[Section], path: str = "") -> Iterator[tuple[str, type[Section]]]:
    """Yield every section below one with its dotted name, outer ones first."""
    for name, field in owner.model_fields.items():
        section = _section(field)
        if section is not None:
            yield f"{path}{name}", section
            yield from sections(section, f"{path}{name}.")


def _section(field: Any) -> type[Section] | None:
    members = [field.annotation, *get_args(field.annotation)]
    return next((m for m in members if isinstance(m, type) and issubclass(m, Section)), None)


def _row(key: str, field: Any) -> list[str]:
    if field.is_required():
        return [f"`{key}`", _kind(field), "must be given", " ".join((field.description or "").split())]
    default = field.get_default(call_default_factory=True)
    shown = {None: "none", True: "true", False: "false", "": '""'}.get(default) if _plain(default) else None
    return [f"`{key}`", _kind(field), shown or _value(default), " ".join((field.description or "").split())]


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, str))


def _value(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(str, value))}]"
    return str(value)


def _kind(field: Any) -> str:
    """Say what a key may be: its type and its limits."""
    words = " or ".join(dict.fromkeys(_type(each) for each in _members(field.annotation)))
    limits = [text for mark in field.metadata for text in [_limit(mark)] if text]
    return ", ".join([words, *limits])


def _members(annotation: Any) -> list[Any]:
    return list(get_args(annotation)) if get_origin(annotation) in (Union, UnionType) else [annotation]


def _type(annotation: Any) -> str:
    if hasattr(annotation, "__metadata__"):
        limits = [text for mark in annotation.__metadata__ for text in [_limit(mark)] if text]
        return ", ".join([_type(annotation.__origin__), *limits])
    if get_origin(annotation) is not None and str(get_origin(annotation)).endswith("Literal"):
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) in (tuple, list):
        inner = [each for each in get_args(annotation) if each is not ...]
        return f"list of {' or '.join(dict.fromkeys(' or '.join(map(_type, _members(each))) for each in inner))}"
    named = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): "none"}
    if annotation in named:
        return named[annotation]
    return "mapping" if get_origin(annotation) is dict else str(annotation)


def _limit(mark: Any) -> str:
    """Write limits such as Ge(1), alone or within a field's metadata."""
    if hasattr(mark, "metadata"):
        return " and ".join(text for each in mark.metadata for text in [_limit(each)] if text)
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = [f"{sign} {_bound(getattr(mark, name))}" for name, sign in signs.items() if hasattr(mark, name)]
    return " and ".join(found)


def _bound(value: float) -> str:
    return {10**9: "10⁹", 2**63: "2⁶³"}.get(value, f"{value:g}") if isinstance(value, int) else f"{value:g}"


def _table(rows: list[list[str]]) -> str:
    head = [["key", "value", "default", "meaning"], ["---"] * 4]
    return "".join(f"| {' | '.join(re.sub(r'[|]', '&#124;', cell) for cell in row)} |\n" for row in [*head, *rows])
