"""Coverage of papers: computed from the cards of the catalogue, so that no claim is written twice."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from grouprl.core.json_types import JsonObject
from grouprl.core.plugins import announced
from grouprl.papers.paper_list import Listing, listings
from grouprl.papers.training import command_of_entry, command_with, plain_command
from grouprl.storage.source_cache import from_sources

STATUSES = {
    "entry": "a method of the catalogue",
    "recipe": "a recipe that trains it as a whole",
    "part": "settings that do what it proposes",
    "command": "a command that does what it proposes",
    "planned": "not implemented yet",
    "adjacent": "not implemented, a neighbouring field",
    "outside": "not implemented, nothing that grouprl could train",
}
"""Kinds of coverage of a paper."""
ROOMS = ("papers", "methods", "algorithms", "recipes", "config", "plan")
"""Folders whose sources decide what covers a paper."""
SOURCES = (*ROOMS, "orchestrator", "rewards", "tasks")
"""Folders whose sources decide which commands train it."""
NAMES = re.compile(r"\s*[/()+,:]\s*|\s+and\s+")
"""Separators of the names that a paper gives to its methods."""


@dataclass(frozen=True)
class Standing:
    """A paper and what covers it; `entries` also holds those found by the title on their card."""

    paper: Listing
    status: str
    entries: tuple[str, ...]
    dialects: tuple[str, ...]
    """Catalogue entries with another library's numbers."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what covers the paper, () if it is not implemented."""
        named = {"entry": self.entries, "recipe": self.paper.recipes, "part": self.paper.settings}
        return (self.paper.command,) if self.status == "command" else named.get(self.status, ())

    def commands(self) -> list[str]:
        """Return the commands that show and train it; if training is refused, the `plan` command that says why."""
        rows = from_sources(f"paper_{self.paper.number}", SOURCES, self._planned, keep=not announced())
        return [row["command"] for row in rows]

    def _planned(self) -> list[JsonObject]:
        """Return the commands; a plan is made for each, which takes seconds."""
        trained = [shlex.join(["grouprl", "train", name]) for name in self.paper.recipes]
        if self.status == "entry":
            entries = [command_of_entry(name, self.settings_of(name)) for name in self.entries]
            trained = list(dict.fromkeys([*entries, *trained]))
        elif self.status == "part":
            trained = [command_with(*self.paper.settings)]
        elif self.status == "command":
            trained = [self.paper.command]
        shown = [shlex.join(["grouprl", "methods", "show", name]) for name in self.entries]
        return [{"command": command} for command in [*shown, *trained]]

    def settings_of(self, name: str) -> list[str]:
        """Return the changes that the entry `name` needs besides its name: those of all entries, and its own."""
        split = [setting.partition(":") for setting in self.paper.settings]
        return [change if owner == name else owner + sign + change for owner, sign, change in split if _of(owner, name)]

    def text(self) -> str:
        """Return all text in which a search looks."""
        paper = self.paper
        return " ".join([str(paper.number), paper.title, paper.method, paper.summary, *self.names]).lower()

    def data(self) -> JsonObject:
        """Return the paper and its coverage as plain data."""
        computed = {"entries": self.entries, "dialects": self.dialects, "commands": self.commands()}
        return asdict(self.paper) | {"status": self.status, "means": STATUSES[self.status]} | computed


def standing(paper: Listing) -> Standing:
    """Return what covers `paper`."""
    found = tuple(dict.fromkeys([*paper.entries, *_entries_by_title().get(plain(paper.title), ())]))
    dialects = tuple(name for name in found if "@" in name)
    entries = tuple(name for name in found if "@" not in name)
    return Standing(paper, _status(paper, entries), entries, dialects)


def standings() -> list[Standing]:
    """Return what covers each paper; if that was computed before, no method is imported."""
    rows = from_sources("papers", ROOMS, _rows, keep=not announced())
    return [
        Standing(paper, row["status"], tuple(row["entries"]), tuple(row["dialects"]))
        for paper, row in zip(listings(), rows, strict=True)
    ]


def _rows() -> list[JsonObject]:
    found = map(standing, listings())
    return [{"status": each.status, "entries": each.entries, "dialects": each.dialects} for each in found]


def search(
    query: str = "", scope: str = "", status: str = "", among: Iterable[Standing] | None = None
) -> list[Standing]:
    """Return the papers in which every word of `query` occurs, by number; a number alone means that paper."""
    words = query.lower().split()
    papers = standings() if among is None else among
    found = [s for s in papers if scope in ("", s.paper.scope) and status in ("", s.status)]
    if query.strip().isdigit():
        return [s for s in found if s.paper.number == int(query)]
    return [s for s in found if all(_found(word, s.text()) for word in words)]


def named(name: str) -> list[Standing]:
    """Return the papers that call their method `name`, by number, capitals and punctuation aside.

    A paper may name several, such as "CGPO (CRPG/CODPO/CRRAFT)": each of them, and all of it, is a name.
    """
    wanted = plain(name)
    return [s for s in standings() if wanted in map(plain, [s.paper.method, *NAMES.split(s.paper.method)]) and wanted]


def training_command(name: str) -> str:
    """Return the command that trains a method: an entry as it stands or, where that cannot be or does not all act,
    with what its card and a paper's row say it needs.

    It is a `plan` command, which says why, where no recipe can train it.
    """
    if ":" in name:
        return command_with(f"method={name}")
    rows = from_sources(f"command_{name}", SOURCES, lambda: [{"command": _of_entry(name)}], keep=not announced())
    command: str = rows[0]["command"]
    return command


def _of_entry(name: str) -> str:
    given = (each.settings_of(name) for each in standings() if name in each.entries)
    return plain_command(name) or command_of_entry(name, next(filter(None, given), []))


def counts(found: Iterable[Standing]) -> dict[str, int]:
    """Return how many papers have each status, in the order of `STATUSES`, without zeros."""
    counted = Counter(s.status for s in found)
    return {status: counted[status] for status in STATUSES if counted[status]}


def _found(word: str, text: str) -> bool:
    """Return whether a word occurs in a text; names of the catalogue have `_` where papers have a hyphen or a blank."""
    return word in text or ("_" in word and any(word.replace("_", sign) in text for sign in ("-", " ", "")))


def plain(title: str) -> str:
    """Return a title's letters and digits alone: punctuation and case differ between bibliographies."""
    return "".join(c for c in title.casefold() if c.isalnum())


def _of(owner: str, name: str) -> bool:
    """Return whether a change applies to the entry `name`: the text before its first ':' is that name or part of a
    setting.
    """
    return "=" in owner or owner == name


def _status(paper: Listing, entries: Sequence[str]) -> str:
    if entries:
        return "entry"
    if paper.recipes:
        return "recipe"
    if paper.settings:
        return "part"
    if paper.command:
        return "command"
    return paper.scope if paper.scope in ("adjacent", "outside") else "planned"


def _entries_by_title() -> dict[str, list[str]]:
    """Return entries by the plain titles of their papers; entries whose first paper it is come first."""
    from grouprl.methods import CATALOGUE

    found: dict[str, list[str]] = {}
    for later in (False, True):
        for entry in CATALOGUE.values():
            for paper in entry.card.papers[1:] if later else entry.card.papers[:1]:
                found.setdefault(plain(paper.title), []).append(entry.name)
    return found
