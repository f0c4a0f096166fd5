"""Configurations that break their schema, in words: value, rule and remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pydantic

from grouprl.config.sections import Section
from grouprl.config.sections.section import POWER_OF_TEN
from grouprl.core.errors import InputError, shortened, suggest
from grouprl.core.foreign.names import VALUES, foreign

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MOST_UNKNOWN = 12
"""Unknown keys that one message names."""
UNION_TAG = re.compile(r"[\w-]+\[.*\]|constrained-\w+", re.DOTALL)
"""The type that pydantic tried, which it appends to a key that may have several types."""
PLAIN_TYPES = ("str", "int", "float", "bool")
"""The same for plain types, which pydantic appends without a mark; no configuration key has these names."""


def in_words(error: pydantic.ValidationError, root: type[Section]) -> InputError:
    """Return the error for a configuration of the kind `root` that breaks its schema: value, rule and remedy."""
    first = error.errors()[0]
    path = _path(first)
    key = ".".join(path)
    if not path and first["type"] != "value_error":
        return InputError(f"the configuration is {shortened(first['input'])}", str(first["msg"]))
    if first["type"] == "extra_forbidden":
        return _unknown([each for each in error.errors() if each["type"] == "extra_forbidden"], root)
    if first["type"] == "model_type" and (section := _section(path, root)) is not None:
        rule = f"it has settings of its own: {', '.join(section.model_fields)}"
        return InputError(f"{key} = {shortened(first['input'])}", rule, _as_first(key, section, first["input"]))
    if first["type"] == "value_error":
        rule = str(first["msg"]).removeprefix("Value error, ")
        return InputError(f"{key} = {shortened(first['input'])}", rule) if path else InputError(rule)
    messages = dict.fromkeys(_rule(each) for each in error.errors() if _path(each) == path)
    ours = VALUES.get(str(first["input"]).lower())
    remedy = f"It is written {ours} here" if ours and any(repr(ours) in said for said in messages) else ""
    remedy = remedy or _yaml_reading(first["input"], str(first["type"]))
    return InputError(f"{key} = {shortened(first['input'])}", ", or: ".join(messages), remedy)


TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "dict": "a mapping",
    "tuple": "a list, such as [a, b]",
    "list": "a list, such as [a, b]",
}
"""Values by the beginning of the kind of error that pydantic reports."""


def _rule(error: ErrorDetails) -> str:
    """Return the rule that a value breaks: in our words for a wrong type."""
    kind, _, how = str(error["type"]).partition("_")
    return f"it must be {TYPES[kind]}" if kind in TYPES and how in ("type", "parsing", "from_float") else error["msg"]


def _yaml_reading(value: object, kind: str) -> str:
    """Return how to write a value that YAML does not read as it looks; "" for others."""
    if isinstance(value, bool) and kind != "bool_type":
        words = "yes, on and true" if value else "no, off and false"
        return f"YAML reads {words} without quotes as {str(value).lower()}: put the word in quotes if it is meant"
    if isinstance(value, str) and POWER_OF_TEN.fullmatch(value):
        return f"YAML reads {value} as a text: write {float(value):.12g}"
    return ""


def _as_first(key: str, section: type[Section], value: object) -> str:
    """Return how the value is written as the first setting of a section, if it can be that; else ""."""
    name = next(iter(section.model_fields))
    try:
        section.model_validate({name: value})
    except pydantic.ValidationError:
        return ""
    return f"If {name} is meant, write {key}: {{{name}: {value}}}, or --set {key}.{name}={value}"


def _unknown(errors: Sequence[ErrorDetails], root: type[Section]) -> InputError:
    """Return the error for keys that do not exist, with the nearest ones, or ours for those of another library."""
    paths = [_path(each) for each in errors]
    names = ", ".join(f"'{'.'.join(path)}'" for path in paths[:MOST_UNKNOWN])
    more = f" and {len(paths) - MOST_UNKNOWN} more" if len(paths) > MOST_UNKNOWN else ""
    said = [_meant_key(path, each["input"], root) for path, each in zip(paths[:MOST_UNKNOWN], errors, strict=False)]
    return InputError(f"unknown key{'s' * (len(paths) > 1)} {names}{more}", remedy=" ".join(dict.fromkeys(said)))


def _meant_key(path: Sequence[str], value: object, root: type[Section]) -> str:
    """Return which key may have been meant by an unknown one; a section's own come before another library's."""
    theirs, near = foreign(path, value), suggest(path[-1], list(getattr(_section(path[:-1], root), "model_fields", ())))
    if theirs:
        return f"{near} {theirs}" if len(path) > 1 and near.startswith("Did you mean") else theirs
    return near


def _path(error: ErrorDetails) -> list[str]:
    path = [name for name in map(str, error["loc"]) if not UNION_TAG.fullmatch(name)]
    return path[:-1] if len(path) > 1 and path[-1] in PLAIN_TYPES else path


def _section(path: Sequence[str], root: type[Section]) -> type[Section] | None:
    """Return the section at a path below the root; None if there is none."""
    section: type[Section] | None = root
    for name in path:
        field = {} if section is None else section.model_fields
        options = [field[name].annotation, *getattr(field[name].annotation, "__args__", ())] if name in field else []
        section = next((x for x in options if isinstance(x, type) and issubclass(x, Section)), None)
    return section
