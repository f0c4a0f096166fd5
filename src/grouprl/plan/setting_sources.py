"""The source of every setting of a run."""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from grouprl.config.sections import Section
from grouprl.core.errors import InputError
from grouprl.methods.compose import BY_YOU, OF_PART, Resolved, flat
from grouprl.methods.registry import CATALOGUE

DEFAULT = "default"


@dataclass(frozen=True)
class Setting:
    """One resolved setting: its dotted key, its value, the source of the value, and a description."""

    key: str
    value: object
    origin: str
    meaning: str = ""


def config_settings(
    section: Section, path: tuple[str, ...], depending: Mapping[str, tuple[object, str]] | None = None
) -> Iterator[Setting]:
    """Yield every leaf of the configuration except the method, which has its own table.

    `depending`: the defaults that depend on other settings, by key, each with its source.
    """
    depending = depending or {}
    for name, field in type(section).model_fields.items():
        value, key = getattr(section, name), (*path, name)
        given = name in section.model_fields_set
        if isinstance(value, Section):
            yield from config_settings(value, key, depending)
        elif key != ("method",):
            usual, source = depending.get(".".join(key), (field.get_default(), ""))
            default = f"{DEFAULT}: {source}" if source else DEFAULT
            origin = default if not given else "set" if value != usual else "set, same as default"
            yield Setting(".".join(key), value, origin, "" if source else " ".join((field.description or "").split()))


def method_settings(resolved: Resolved) -> Iterator[Setting]:
    """Yield the settings of the catalogue entry that still decide something, then the parts that were replaced.

    Without an entry, yield every setting of every part.
    """
    values, own = flat(resolved.method), dict(resolved.method.settings) if resolved.base else {}
    exchanged = {k for k, origin in resolved.provenance.items() if k in values and origin in (BY_YOU, OF_PART)}
    for key, origin in resolved.provenance.items():
        if key in own and not _overruled(resolved.base, key, exchanged):
            yield Setting(key, own[key], origin)
        elif key not in own and (key in exchanged or (not resolved.base and key in values)):
            yield Setting(key, values[key], origin)


def _overruled(base: str, setting: str, exchanged: Collection[str]) -> bool:
    """Return whether everything that a setting of the entry `base` decides was set in the parts themselves."""
    stages = {key.partition(".")[0] for key in exchanged if "." not in key}
    decided = _decides(base, setting) if exchanged else set()
    return bool(decided) and all(key in exchanged or key.partition(".")[0] in stages for key in decided)


def _decides(base: str, setting: str) -> set[str]:
    """Return the keys of the part settings that change when a setting of an entry is varied."""
    entry = CATALOGUE.get(base)
    if entry is None:
        return set()
    hint = typing.get_type_hints(entry.compose)[setting]
    choices = [choice for option in (hint, *typing.get_args(hint)) for choice in typing.get_args(option)]
    before = flat(entry.build())
    # Two values of each type: one of them may be the default, or what another setting makes equal to it.
    for value in (*choices, True, False, 0.5, 0.01, 2, 1):
        try:
            after = flat(entry.build(**{setting: value}))
        except InputError:
            continue
        if after != before:
            return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    return set()
