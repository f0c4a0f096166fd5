"""The papers as data: `papers.csv`, one row each.

Its columns entries, recipes and settings hold names separated by blanks. `entries` lists catalogue entries whose card
gives the paper another title; those with the same title are found automatically. `settings` are `--set` changes: those
that cover the paper if it has no entry, else those that its entries need besides their name; `NAME:` before a change
restricts it to that entry. `command` is the command for a paper without training; most rows lack it.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

from grouprl.core.errors import InputError

SCOPES = {
    "core": "a method for the policies that grouprl trains",
    "recipe": "an application of such methods: tasks, rewards and settings",
    "adjacent": "a neighbouring field",
    "outside": "nothing that grouprl could train",
}
"""Relevance of a paper to this package."""


@dataclass(frozen=True)
class Listing:
    """A paper of the list, and the names recorded for it."""

    number: int
    title: str
    kind: str
    scope: str
    method: str
    """Name of the paper's method."""
    confidence: str
    """Extent to which the paper's formulas were checked: verified, partly, abstract-only."""
    summary: str
    entries: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    note: str = ""
    """Parts of the paper that the names leave out."""
    command: str = ""
    """The command that does what the paper proposes, where nothing is trained."""


@cache
def listings() -> tuple[Listing, ...]:
    """Return all papers in the order of their numbers."""
    text = (resources.files("grouprl.papers") / "papers.csv").read_text(encoding="utf-8")
    return tuple(_listing(row) for row in csv.DictReader(text.splitlines(), restval=""))


def listing(number: int) -> Listing:
    """Return the paper with this number. Raises InputError if there is none."""
    found = {each.number: each for each in listings()}
    if number not in found:
        raise InputError(f"there is no paper {number}", f"papers are numbered 1 to {max(found)}", "See: grouprl papers")
    return found[number]


def _listing(row: dict[str, str]) -> Listing:
    names = {key: tuple(row.pop(key).split()) for key in ("entries", "recipes", "settings")}
    return Listing(number=int(row.pop("number")), **row, **names)  # type: ignore[arg-type]
