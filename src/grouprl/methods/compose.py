"""Composing methods from plain data: a catalogue name with settings, a base with other parts, or parts alone.

The forms of a `method:` specification, from short to long::

    dapo
    {name: dapo, clip_high: 0.3}                                             # settings of the entry
    {base: grpo, advantage: {scale: none}, aggregate: constant_length}       # settings of a part; another part
    {base: grpo, add: {regularize: [{part: kl_loss, coef: 0.04}]}}                # one more part
    {name: mine, objective: clipped, advantage: relative, aggregate: token_mean}
    my_package.my_module:my_method   or   my_file.py:my_method               # own code
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from grouprl.algorithms.building import changed, part_from
from grouprl.algorithms.method import Method
from grouprl.algorithms.part import KINDS, Part
from grouprl.core.errors import InputError, suggest
from grouprl.core.foreign.names import foreign
from grouprl.core.json_types import JsonObject
from grouprl.methods.conflicts import conflicts
from grouprl.methods.naming import read_names
from grouprl.methods.registry import CATALOGUE, Entry

LISTS = (
    "reward_transform",
    "filter",
    "advantage_transform",
    "prune",
    "token_weight",
    "token_gate",
    "regularize",
    "augment",
    "pretrain",
)
"""Stages that hold any number of parts."""
REQUIRED = ("objective", "advantage", "aggregate")
"""Stages that every method has."""
STAGES = tuple(KINDS)
FLAGS = ("greedy_baseline", "on_policy")
BY_YOU = "set by you"
OF_PART = "default of the part"

_Stages: TypeAlias = dict[str, Any]
"""Arguments of `Method`: parts by stage, and flags."""


@dataclass(frozen=True)
class Resolved:
    """A method made from a specification, and where each of its numbers comes from.

    `provenance` maps every entry setting (`clip_high`), stage (`objective`) and part setting (`objective.clip_high`,
    `regularize.0.coef`) to a phrase that names its origin. `warnings` are combinations that work but are probably not
    meant.
    """

    method: Method
    base: str
    provenance: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def compose(spec: str | Mapping[str, object]) -> Resolved:
    """Build the method that `spec` describes. Raises InputError on unknown names and keys and on contradictions."""
    name, base, rest = read_names({"base": spec} if isinstance(spec, str) else spec)
    if base is None:
        resolved = _from_parts(name, rest)
    else:
        settings = {k: v for k, v in rest.items() if k in base.settings}
        resolved = _from_entry(base, settings, {k: v for k, v in rest.items() if k not in settings})
    return replace(resolved, method=replace(resolved.method, name=name)) if name else resolved


def as_data(method: Method) -> JsonObject:
    """Return `method` as a specification in plain data, part by part; `compose` of it builds the same method."""
    data: JsonObject = {"name": method.name}
    for stage in STAGES:
        value = getattr(method, stage)
        if stage in LISTS:
            data[stage] = [part_data(p) for p in value]
        elif value is not None:
            data[stage] = part_data(value)
    return data | {flag: True for flag in FLAGS if getattr(method, flag)}


def as_written(method: Method) -> str | JsonObject:
    """Return a specification of `method` as one would write it: the name of a method of the catalogue, with the
    settings or else the stages that differ from its own. `compose` of it builds the same method.
    """
    data = as_data(method)
    if method.name not in CATALOGUE:
        return data
    base = compose(method.name).method
    own, known = as_data(base), base.settings
    changed = {key: value for key, value in method.settings.items() if value != known.get(key)}
    stages = {key: value for key, value in data.items() if value != own.get(key)}
    for each in (changed, stages):
        written: JsonObject = {"base": method.name, **each}
        if as_data(compose(written).method) == data:
            return written if each else method.name
    return data


def part_data(part: Part) -> JsonObject:
    """Return a part as plain data: its name and settings, with the parts that it holds as such data, too."""
    return {"part": part.name, **part.settings(), **{name: part_data(held) for name, held in part.nested().items()}}


# --- composition --------------------------------------------------------------------------------------------------


def _from_parts(name: str, spec: Mapping[str, object]) -> Resolved:
    """Compose a method without a base."""
    _known_keys(spec, "a method composed from parts", {})
    missing = [stage for stage in REQUIRED if stage not in spec]
    if missing:
        raise InputError(
            f"method '{name}' is not in the catalogue and lacks {' and '.join(missing)}",
            f"a method composed from parts needs {', '.join(REQUIRED)}",
            f"Or start from a method: {{base: grpo, …}}. {suggest(name, CATALOGUE)}",
        )
    start: _Stages = {stage: () if stage in LISTS else None for stage in STAGES}
    return _override(start, {}, spec, None, lambda parts: Method(**parts, name=name))


def _from_entry(base: Entry, settings: Mapping[str, object], overrides: Mapping[str, object]) -> Resolved:
    """Compose an entry with changed settings, then with changed parts."""
    _known_keys(overrides, f"method {base.name}", base.settings)
    built = base.build(**settings)
    through = _touched(base, settings)
    _refuse_double(base.name, through, overrides)
    provenance = {key: _origin(base, key, key in settings) for key in base.settings}
    for key in flat(built):
        provenance[key] = f"{BY_YOU} through {through[key]}" if key in through else f"default of {base.name}"
    start = {stage: getattr(built, stage) for stage in STAGES}
    return _override(start, provenance, overrides, base, lambda parts: replace(built, **parts))


def _origin(base: Entry, key: str, given: bool) -> str:
    if given:
        return BY_YOU
    source = base.card.defaults.get(key, "")
    return f"default of {base.name}" + (f": {source}" if source else "")


def _override(
    stages: _Stages,
    provenance: Mapping[str, str],
    spec: Mapping[str, object],
    entry: Entry | None,
    build: Callable[[_Stages], Method],
) -> Resolved:
    """Apply part overrides to the `stages` of a base (or to none) and check the result."""
    base = "" if entry is None else entry.name
    origin, notes = dict(provenance), []
    parts: _Stages = dict(stages)
    for stage in STAGES:
        if stage in spec:
            parts[stage], marks = _stage(stage, spec[stage], stages[stage], base)
            origin = {k: v for k, v in origin.items() if k.split(".")[0] != stage or k in marks.keep} | marks.new
            if base and parts[stage] == stages[stage]:
                notes.append(f"{stage} of {base} is already what you set: {spec[stage]!r}")
    for stage, items in _added(spec.get("add")).items():
        start = len(parts[stage])
        parts[stage] += tuple(_item(stage, item, f"add.{stage}[{i}]") for i, item in enumerate(items))
        origin |= _marks(stage, items, parts[stage][start:], start)
    flags = {flag: _flag(flag, spec[flag]) for flag in FLAGS if flag in spec}
    method = build(parts | flags)
    return Resolved(method, base, origin | dict.fromkeys(flags, BY_YOU), _prepared(method, entry), tuple(notes))


def _prepared(method: Method, entry: Entry | None) -> tuple[str, ...]:
    """Return the warnings about a method. Raises InputError if its parts contradict each other.

    Entries as published are never judged: a warning that the entry has at its defaults is not repeated for a changed
    entry, whether a setting of the entry or a part was changed.
    """
    published = None if entry is None else _published(entry)
    stages = {stage for stage in STAGES if published is None or getattr(method, stage) != getattr(published, stage)}
    errors, warnings = conflicts(method, stages)
    known_errors, known = ([], []) if published is None else conflicts(published, STAGES)
    for what, rule, remedy in errors:
        if (what, rule, remedy) not in known_errors:
            raise InputError(what, rule, remedy)
    return tuple(words for words in warnings if words not in known)


def _published(entry: Entry) -> Method | None:
    """Return the entry at its defaults; None if it has settings without a default."""
    if inspect.Parameter.empty in entry.settings.values():
        return None
    return entry.build()


@dataclass(frozen=True)
class _Marks:
    """Provenance of an overridden stage: keys that keep the base's mark, and new ones."""

    keep: frozenset[str]
    new: dict[str, str]


def _stage(stage: str, given: object, current: Part | None, base: str) -> tuple[Part | tuple[Part, ...] | None, _Marks]:
    """Return the stage's new part(s) and provenance."""
    if stage in LISTS:
        if not isinstance(given, Sequence) or isinstance(given, str):
            remedy = f"Write {stage}: [{{part: …}}], or add: {{{stage}: […]}} to keep the base's"
            raise InputError(f"method.{stage} = {given!r}", "it must be a list of parts", remedy)
        made = tuple(_item(stage, item, f"{stage}[{i}]") for i, item in enumerate(given))
        return made, _Marks(frozenset(), {stage: BY_YOU} | _marks(stage, given, made, 0))
    if given is None:
        if stage in REQUIRED:
            raise InputError(f"method.{stage} is empty", f"every method needs {', '.join(REQUIRED)}")
        return None, _Marks(frozenset(), {stage: f"{BY_YOU}: none"})
    if isinstance(given, Mapping) and "part" not in given:
        return _changed(stage, given, current, base)
    made_one = _item(stage, given, stage)
    return made_one, _Marks(frozenset(), _part_marks(stage, given, made_one))


def _changed(stage: str, given: Mapping[str, object], current: Part | None, base: str) -> tuple[Part, _Marks]:
    """Change some settings of the base's part."""
    if current is None:
        who = f"method {base} has no {stage}" if base else f"method.{stage} names no part"
        raise InputError(f"{who} whose settings could change", remedy=f"Name one: {stage}: {{part: …}}")
    made = changed(current, {str(k): v for k, v in given.items()})
    new = _changed_marks(stage, given, made)
    return made, _Marks(frozenset(flat_part(stage, made)) - frozenset(new), new)


def _item(stage: str, given: object, where: str) -> Part:
    """Build one part from its name or {part: name, settings…}."""
    return part_from(stage, given, f"method.{where}")


def _added(add: object) -> dict[str, list[object]]:
    if add is None:
        return {}
    if not isinstance(add, Mapping) or not all(isinstance(v, list | tuple) for v in add.values()):
        raise InputError(
            f"method.add = {add!r}", "it must map stages to lists of parts", "Write add: {regularize: [kl_loss]}"
        )
    for stage in add:
        if stage not in LISTS:
            raise InputError(f"method.add.{stage}", "only list stages can be added to", suggest(str(stage), LISTS))
    return {stage: list(items) for stage, items in add.items()}


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"method.{key} = {value!r}", "it must be true or false")
    return value


def _known_keys(spec: Mapping[str, object], who: str, settings: Mapping[str, object]) -> None:
    known = [*settings, *STAGES, *FLAGS, "add", "name", "base"]
    for key in spec:
        if key not in known:
            remedy = foreign(["method", key], spec[key], known) or suggest(key, known)
            raise InputError(f"{who} has no setting or stage '{key}'", remedy=remedy)


# --- provenance ---------------------------------------------------------------------------------------------------


def _marks(stage: str, given: Sequence[object], made: Sequence[Part], start: int) -> dict[str, str]:
    marks: dict[str, str] = {}
    for index, (item, part) in enumerate(zip(given, made, strict=True), start):
        marks |= _part_marks(f"{stage}.{index}", item, part)
    return marks


def _part_marks(key: str, given: object, part: Part) -> dict[str, str]:
    """Return the origins of a part that the specification names, and of everything that it holds."""
    return dict.fromkeys(flat_part(key, part), OF_PART) | {key: BY_YOU} | _changed_marks(key, given, part)


def _changed_marks(key: str, given: object, part: Part) -> dict[str, str]:
    """Return the origins of the part settings that the specification gives, including those of nested parts."""
    marks: dict[str, str] = {}
    for name, value in given.items() if isinstance(given, Mapping) else ():
        inner, within = part.nested().get(name), isinstance(value, Mapping) and "part" not in value
        if inner is not None:
            marks |= (_changed_marks if within else _part_marks)(f"{key}.{name}", value, inner)
        elif name != "part":
            marks[f"{key}.{name}"] = BY_YOU
    return marks


def flat_part(key: str, part: Part) -> dict[str, object]:
    """Return a part's name and settings by provenance key: {'objective': 'pair', 'objective.link.beta': 0.1, …}."""
    flat: dict[str, object] = {key: part.name}
    for name, value in part.settings().items():
        flat |= flat_part(f"{key}.{name}", value) if isinstance(value, Part) else {f"{key}.{name}": value}
    return flat


def flat(method: Method) -> dict[str, object]:
    """Return every part's name and settings by provenance key, including parts that others hold."""
    found: dict[str, object] = {}
    for stage in STAGES:
        value = getattr(method, stage)
        keyed = {f"{stage}.{i}": p for i, p in enumerate(value)} if stage in LISTS else {stage: value}
        for key, part in keyed.items():
            if part is not None:
                found |= flat_part(key, part)
    return found


def _touched(base: Entry, settings: Mapping[str, object]) -> dict[str, str]:
    """Return the provenance keys that each given entry setting changes: {'objective.clip_high': 'clip_high'}."""
    required = {k: v for k, v in settings.items() if base.settings[k] is inspect.Parameter.empty}
    plain = flat(base.build(**required))
    touched: dict[str, str] = {}
    for name, value in settings.items():
        try:
            other = flat(base.build(**{**required, name: value}))
        except InputError:  # right only together with the others
            other = flat(base.build(**settings))
        differs = {key for key in plain | other if plain.get(key, _ABSENT) != other.get(key, _ABSENT)}
        touched |= dict.fromkeys(differs, name)
    return touched


_ABSENT = object()


def _decides(given: object, names: Sequence[str]) -> bool:
    """Return whether the override of a part sets the part `names`: itself, or another part that holds it."""
    if not isinstance(given, Mapping) or "part" in given:
        return True
    if len(names) < 2:
        return bool(names) and names[0] in given
    return names[0] in given and _decides(given[names[0]], names[1:])


def _refuse_double(base: str, through: Mapping[str, str], overrides: Mapping[str, object]) -> None:
    """Refuse an entry setting and a part override that decide the same thing."""
    for key, setting in through.items():
        stage, *names = key.split(".")
        if stage not in overrides or not _decides(overrides[stage], names):
            continue
        raise InputError(
            f"method {base}: '{setting}' and '{stage}' both decide {key}",
            "each number must be set in one place only",
            f"Drop '{setting}', or set it inside '{stage}'",
        )
