"""What an entry of the glossary is.

A metric has an entry here before it is logged; `check_names` enforces it for each record of `metrics.jsonl`.
Names with a `*` are families: `reward/*` stands for every reward component.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from grouprl.core.errors import InputError, suggest

GROUPS = ("outcome", "completions", "groups", "policy", "update", "critic", "speed", "evaluation", "record")
"""Sections of the glossary, in the order in which they are shown."""


@dataclass(frozen=True)
class Metric:
    """One entry: `words` says what is measured, `good` how a healthy run looks and what is a bad sign."""

    name: str
    unit: str
    words: str
    good: str
    group: str

    @property
    def family(self) -> bool:
        """Whether the name is a pattern that stands for several metrics."""
        return "*" in self.name


GLOSSARY: dict[str, Metric] = {}


def define(name: str, unit: str, group: str, words: str, good: str) -> Metric:
    """Add an entry, for example for a part of your own. Raises InputError on a name that is taken or a wrong group."""
    if name in GLOSSARY:
        raise InputError(f"metric '{name}' is defined twice", "a metric has one meaning", "Choose another name")
    if group not in GROUPS:
        raise InputError(f"metric '{name}' is in group '{group}'", f"groups are {', '.join(GROUPS)}", "Choose one")
    GLOSSARY[name] = Metric(name, unit, words, good, group)
    return GLOSSARY[name]


def lookup(name: str) -> Metric:
    """Return the entry of `name`, or of the family it belongs to. Raises InputError when there is none."""
    if name in GLOSSARY:
        return GLOSSARY[name]
    families = [m for m in GLOSSARY.values() if m.family and fnmatchcase(name, m.name)]
    if not families:
        raise InputError(f"'{name}' is not a known metric", remedy=f"{suggest(name, GLOSSARY)} See: grouprl metrics")
    return max(families, key=lambda m: (not m.name.endswith("*"), len(m.name)))


def check_names(record: Iterable[str]) -> None:
    """Raise InputError if a key of `record` has no glossary entry."""
    for name in record:
        try:
            lookup(name)
        except InputError as unknown:
            raise InputError(
                f"metric '{name}' has no glossary entry",
                "a metric is defined before it is logged",
                f"Add it with grouprl.monitor.glossary.define. {suggest(name, GLOSSARY)}",
            ) from unknown
