"""The papers as data: `papers.csv`, one row each.

Its columns entries, recipes and settings hold names separated by blanks. `entries` is for catalogue entries whose card
gives the paper another title: those with the same title are found by themselves. `settings` are `--set` changes: what
covers the paper when there is no entry, else what its entries need beside their name; `NAME:` before a change keeps it
to that entry.
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
"""How near a paper is to what the package is for."""


@dataclass(frozen=True)
class Listing:
    """A paper of the list, and the names that stand for it as far as they are written down."""

    number: int
    title: str
    kind: str
    scope: str
    method: str
    """The name that the paper's method goes by."""
    confidence: str
    """How far its formulas could be checked: verified, partly, abstract-only."""
    summary: str
    entries: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    note: str = ""
    """What of the paper the names leave out."""


@cache
def listings() -> tuple[Listing, ...]:
    """Return all papers in the order of their numbers."""
    text = (resources.files("grouprl.papers") / "papers.csv").read_text(encoding="utf-8")
    return tuple(_listing(row) for row in csv.DictReader(text.splitlines()))


def listing(number: int) -> Listing:
    """Return the paper with this number; InputError when there is none."""
    found = {each.number: each for each in listings()}
    if number not in found:
        raise InputError(f"there is no paper {number}", f"papers are numbered 1 to {max(found)}", "See: grouprl papers")
    return found[number]


def _listing(row: dict[str, str]) -> Listing:
    names = {key: tuple(row.pop(key).split()) for key in ("entries", "recipes", "settings")}
    return Listing(number=int(row.pop("number")), **row, **names)  # type: ignore[arg-type]
