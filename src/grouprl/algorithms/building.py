"""Building parts from plain data: their names, settings, and the parts that they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

import pydantic

from grouprl.algorithms.part import PARTS, RULES, Part
from grouprl.core.errors import InputError, suggest
from grouprl.core.foreign.names import foreign

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

R = TypeVar("R")


def build_part(kind: str, name: str, settings: Mapping[str, object]) -> Part:
    """Build the part `name` of `kind` from plain data. Raises InputError on an unknown part, setting or value."""
    if name not in PARTS[kind]:
        elsewhere = [f"'{name}' is a part of kind {other}" for other in RULES if name in PARTS[other]]
        raise InputError(f"unknown {kind} part '{name}'", " and ".join(elsewhere), suggest(name, PARTS[kind]))
    cls, where = PARTS[kind][name], f"{kind}: {name}"
    defaults = {field.name: field.default for field in fields(cls)}  # type: ignore[arg-type]
    return checked(cls, _with_parts(cls, settings, defaults, where), where)


def places(cls: type[Part]) -> dict[str, str]:
    """Return the settings of a part that hold parts, each with the kind that it holds."""
    types = {name: info.annotation for name, info in cls.__pydantic_fields__.items()}  # type: ignore[attr-defined]
    return {name: hint.kind for name, hint in types.items() if isinstance(hint, type) and issubclass(hint, Part)}


def part_from(kind: str, given: object, where: str, current: object = None) -> Part:
    """Build a part from its name, {part: name, settings…}, or settings of the `current` part that change.

    Raises:
        InputError: an unknown name, a part of another kind, or a value that is neither name nor mapping.
    """
    if isinstance(given, Part):
        if given.kind == kind:
            return given
        raise InputError(f"{where} is the {given.kind} part '{given.name}'", f"it must be a part of kind {kind}")
    if isinstance(given, str):
        return build_part(kind, given, {})
    settings = {str(key): value for key, value in given.items()} if isinstance(given, Mapping) else {}
    if isinstance(name := settings.pop("part", None), str):
        return build_part(kind, name, settings)
    if isinstance(given, Mapping) and name is None and isinstance(current, Part):
        return changed(current, settings)
    raise InputError(
        f"{where} = {given!r}",
        "a part is its name or a mapping {part: name, …settings}",
        f"See: grouprl parts --kind {kind}",
    )


def changed(part: Part, settings: Mapping[str, object]) -> Part:
    """Return `part` with other `settings`, given as plain data."""
    cls, where, own = type(part), f"{part.kind}: {part.name}", part.settings()
    return checked(cls, {**own, **_with_parts(cls, settings, own, where)}, where)


def _with_parts(
    cls: type[Part], settings: Mapping[str, object], current: Mapping[str, object], where: str
) -> dict[str, object]:
    """Return settings with parts where the plain data name them."""
    kinds = places(cls)
    return {
        name: part_from(kinds[name], value, f"{where}.{name}", current.get(name)) if name in kinds else value
        for name, value in settings.items()
    }


def checked(build: Callable[..., R], settings: Mapping[str, object], where: str) -> R:
    """Call `build(**settings)` and turn pydantic's complaints into one InputError that names the setting."""
    try:
        return build(**settings)
    except pydantic.ValidationError as error:
        first = _nearest(error.errors())
        key = ".".join(name for name in map(str, first["loc"]) if "[" not in name)
        if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            known = [f.name for f in fields(build)] if isinstance(build, type) else _parameters(build)
            theirs = foreign(["method", key], settings=known) if where.startswith("method ") else ""
            raise InputError(f"{where} has no setting '{key}'", remedy=theirs or suggest(key, known)) from None
        if first["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
            raise InputError(f"{where} lacks '{key}', which has no default", remedy=f"Set {key}") from None
        if not key:  # a rule about several settings at once says by itself which
            raise InputError(f"{where}: {str(first['msg']).removeprefix('Value error, ')}") from None
        raise InputError(f"{where}.{key} = {first['input']!r}", str(first["msg"])) from None


def _nearest(errors: Sequence[ErrorDetails]) -> ErrorDetails:
    """Return the complaint about the first setting that got furthest: of several types, that of the value."""
    own = [each for each in errors if each["loc"][:1] == errors[0]["loc"][:1]]
    return max(own, key=lambda each: len(each["loc"]))


def _parameters(build: Callable[..., object]) -> list[str]:
    import inspect

    return list(inspect.signature(build).parameters)
