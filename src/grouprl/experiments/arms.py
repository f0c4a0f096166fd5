"""The competitors of a comparison: arms, each a label and the settings by which it differs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grouprl.config.run import Config
from grouprl.config.yaml_files import read_yaml
from grouprl.core.errors import InputError

Values = tuple[str, ...]
"""The values of a setting in a sweep, as written."""
Choice = str | Mapping[str, object]
"""A method: its name, or a mapping of a base and changes."""


@dataclass(frozen=True)
class Arm:
    """One competitor: its name in tables, and its changes `key=value` of the settings of every source."""

    label: str
    changes: tuple[str, ...] = ()


def methods_of(text: str) -> list[Choice]:
    """Return the methods of a list such as `grpo,dr_grpo,"{base: dapo, clip_high: 0.3}"`: names or mappings.

    Raises:
        InputError: the list is empty or not YAML, or an entry is neither a name nor a mapping.
    """
    found = read_yaml(f"[{text}]", f"--methods {text}")
    if not isinstance(found, list) or not found:
        raise InputError(
            f"--methods {text!r} names no method", "it must be a list: grpo,dr_grpo", "See: grouprl methods"
        )
    wrong = [each for each in found if not isinstance(each, str | Mapping)]
    if wrong:
        raise InputError(
            f"--methods {text}: {wrong[0]!r}",
            "each is a name or a mapping of a base and changes",
            "Write: --methods 'grpo,{base: dapo, clip_high: 0.3}'",
        )
    return found


def sweep_of(option: str, given: str) -> tuple[str, Values]:
    """Return the key and the values of `--over KEY=V1,V2` or `--tune KEY=V1,V2`; values may be mappings in braces.

    Raises:
        InputError: the key or the values are missing, or a value stands twice.
    """
    key, equals, text = given.partition("=")
    values = read_yaml(f"[{text}]", f"{option} {given}") if equals and key and text.strip() else None
    if not isinstance(values, list) or not values:
        raise InputError(
            f"{option} {given}", "it must name a setting and its values", f"Write: {option} optim.lr=1e-4,3e-4"
        )
    written = tuple(each if isinstance(each, str) else json.dumps(each) for each in values)
    if len(set(written)) < len(written):
        raise InputError(f"{option} {given}", "each value may be given only once")
    return key, written


def sweeps_of(option: str, given: Sequence[str]) -> dict[str, Values]:
    """Return every setting of a repeated `--over` or `--tune` with its values.

    Raises:
        InputError: a setting is named twice.
    """
    pairs = [sweep_of(option, each) for each in given]
    if len(dict(pairs)) < len(pairs):
        raise InputError(f"{option} names a setting twice", "each sweep has one list of values")
    return dict(pairs)


def combinations(sweeps: Mapping[str, Values]) -> list[tuple[str, ...]]:
    """Return every combination of values as changes `key=value`; one without changes if nothing is swept."""
    each = [[f"{key}={value}" for value in values] for key, values in sweeps.items()]
    return list(itertools.product(*each))


def arms_of(methods: Sequence[Choice], over: Mapping[str, Values]) -> list[Arm]:
    """Return an arm for each method (one that keeps the source's own if there are none) and combination of `over`.

    Raises:
        InputError: two arms have the same settings, or there are fewer than two.
    """
    named = zip(_names(methods), methods, strict=True)
    heads: list[tuple[str, tuple[str, ...]]] = [(name, (f"method={json.dumps(each)}",)) for name, each in named]
    found = [
        Arm(_label(head, swept), (*changes, *swept))
        for head, changes in heads or [("", ())]
        for swept in combinations(over)
    ]
    return _distinct(found)


def _distinct(found: list[Arm]) -> list[Arm]:
    twice = [arm.label for n, arm in enumerate(found) if arm.label in {other.label for other in found[:n]}]
    if twice:
        raise InputError(f"'{twice[0]}' is compared with itself", "each method may be named only once", "Leave one out")
    return found


def _names(methods: Sequence[Choice]) -> list[str]:
    """Return the names of methods; functions of your own that would have the same one keep their paths."""
    short = [_name(each) for each in methods]
    return [m if short.count(n) > 1 and isinstance(m, str) else n for n, m in zip(short, methods, strict=True)]


def _name(method: Choice) -> str:
    if isinstance(method, str):
        return Path(method).name if ".py:" in method else method
    return Config.model_construct(method=dict(method)).method_label


def _label(head: str, swept: Iterable[str]) -> str:
    return " · ".join([head] * bool(head) + [change.replace("=", " ") for change in swept]) or "as given"
