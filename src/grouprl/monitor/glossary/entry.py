"""Lookup of glossary entries, and the check of every record against them.

A metric has an entry here before it is logged; `check_names` enforces it for each record of `metrics.jsonl`.
Names with a `*` are families: `reward/*` stands for every reward component.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from grouprl.core.errors import InputError, suggest
from grouprl.core.metric import GLOSSARY, GROUPS, Metric, define

__all__ = ["GLOSSARY", "GROUPS", "Metric", "check_names", "define", "lookup"]


def lookup(name: str) -> Metric:
    """Return the entry of `name`, or of the family it belongs to. Raises InputError if there is none."""
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
                f'Declare it on the part that logs it: metrics = {{"{name}": grouprl.Metric(words="…")}}. '
                f"{suggest(name, GLOSSARY)}",
            ) from unknown
