"""Entries of the glossary: the meaning of a logged number, its unit, and how it looks in a healthy run.

A metric has an entry before it is logged. grouprl's own are defined in `grouprl.monitor.glossary`; a part declares
the metrics that it logs. Names with a `*` are families: `reward/*` stands for every reward component.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from grouprl.core.errors import InputError

Level = Literal["token", "row", "pair", "group"]
"""The kind of items over which a metric of a loss is the mean."""
GROUPS = ("outcome", "completions", "groups", "policy", "update", "critic", "speed", "evaluation", "record")
"""Sections of the glossary, in the order in which they are shown."""


@dataclass(frozen=True)
class Metric:
    """One entry: `words` says what is measured, `good` what a healthy run shows and what is a bad sign.

    A part that declares it need not repeat the name: `metrics = {"gate": Metric(unit="share", words="…")}`.
    """

    name: str = ""
    unit: str = "number"
    words: str = ""
    good: str = "whatever the part that logs it is meant to do"
    group: str = "policy"
    owner: str = ""
    """The part that declares the metric; '' for a metric that grouprl logs itself."""
    level: Level = "token"
    """The kind of items over which a metric of a loss is the mean; no other metric has a level."""

    @property
    def family(self) -> bool:
        """True if the name is a pattern that stands for several metrics."""
        return "*" in self.name


GLOSSARY: dict[str, Metric] = {}


def define(group: str, rows: Mapping[str, tuple[str, str, str]], level: Level = "token") -> None:
    """Add entries of a group: unit, words and good of each name.

    Raises InputError if a name is taken or the group is unknown.
    """
    for name, (unit, words, good) in rows.items():
        _add(Metric(name, unit, words, good, group, level=level))


def declare(owner: str, metrics: Mapping[str, Metric]) -> None:
    """Add the metrics that a part logs. Declaring the same metric again has no effect.

    Raises:
        InputError: a name already has another meaning, has no words or a wrong group, or its value is not a Metric.
    """
    for name, metric in metrics.items():
        if not isinstance(metric, Metric) or not metric.words.strip() or metric.name not in ("", name):
            raise InputError(
                f"{owner}: metrics[{name!r}] = {metric!r}",
                "a metric is declared by its name and what it measures",
                f'Write metrics = {{"{name}": Metric(unit="share", words="tokens whose …")}}',
            )
        made = replace(metric, name=name, owner=owner)
        if GLOSSARY.get(name) != made:
            _add(made)


def _add(metric: Metric) -> None:
    if metric.name in GLOSSARY:
        owners = [f" by {each.owner}" for each in (GLOSSARY[metric.name], metric) if each.owner]
        what = f"metric '{metric.name}' is defined twice{','.join(owners)}"
        raise InputError(what, "a metric has one meaning", "Choose another name")
    if metric.group not in GROUPS:
        what = f"metric '{metric.name}' is in group '{metric.group}'"
        raise InputError(what, f"groups are {', '.join(GROUPS)}", "Choose one")
    GLOSSARY[metric.name] = metric
