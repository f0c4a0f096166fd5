"""Methods, parts and tasks for listings, which load none of them unless their sources have changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from grouprl.core.errors import InputError, suggest
from grouprl.core.json_types import JsonObject
from grouprl.core.plugins import announced
from grouprl.storage.source_cache import from_sources

LIBRARY = ("methods", "algorithms")
"""Packages whose sources define the methods and parts."""
_RECORDED = {
    "learned": Text("yes", style="green"),
    "mixed": Text("partly", style="yellow"),
    "not shown": Text("NO", style="bold red"),
    "no record": Text("–", style="dim"),
}
_CONFIDENCE = {"verified": "green", "partly": "yellow", "abstract-only": "red"}


@dataclass(frozen=True)
class Listed:
    """A method's line in a listing."""

    name: str
    family: str
    family_words: str
    """Description of what the methods of the family share."""
    title: str
    summary: str
    year: int
    """Year of the paper; 0 if unknown."""
    confidence: str
    recorded: str
    """Result of the recorded runs: learned, mixed, not shown, no record."""


@cache
def listed() -> tuple[Listed, ...]:
    """Return every method of the catalogue, family by family: GRPO's first, dialects last."""
    return tuple(Listed(**each) for each in from_sources("methods", LIBRARY, _methods, keep=not announced()))


def _methods() -> Sequence[JsonObject]:
    from grouprl.methods.describe import listing

    return listing()


@dataclass(frozen=True)
class ListedPart:
    """A part's line in a listing."""

    name: str
    kind: str
    rule: str
    """Description of what a part of this kind receives and returns."""
    summary: str
    settings: tuple[str, ...]


def listed_parts() -> tuple[ListedPart, ...]:
    """Return every part of this package and of installed plugins, kind by kind."""
    found = from_sources("parts", LIBRARY, _parts, keep=not announced())
    return tuple(ListedPart(**each | {"settings": tuple(each["settings"])}) for each in found)


def _parts() -> Sequence[JsonObject]:
    from grouprl.methods.parts import listing

    return listing()


@dataclass(frozen=True)
class ListedTask:
    """A task's line in a listing; the example is empty for adapters, which need something to adapt."""

    name: str
    description: str
    levels: Sequence[str]
    prompt: str
    answer: str
    demonstration: str


def listed_tasks() -> list[ListedTask]:
    """Return every task that comes with this package."""
    return [ListedTask(**each) for each in from_sources("tasks", ("tasks", "envs"), _tasks)]


def _tasks() -> Sequence[JsonObject]:
    from grouprl.tasks import describe_tasks

    return [asdict(task) for task in describe_tasks()]


def selected(family: str = "", search: str = "") -> list[Listed]:
    """Return the methods of a family that contain the text `search`; raises InputError if there are none."""
    known = {each.family for each in listed()}
    if family and family not in known:
        raise InputError(f"unknown family '{family}'", remedy=suggest(family, known))
    chosen = [each for each in listed() if family in ("", each.family)]
    found = [each for each in chosen if search.lower() in f"{each.name} {each.title} {each.summary}".lower()]
    if not found:
        remedy = f"{suggest(search, (each.name for each in listed()))} See: grouprl methods"
        raise InputError(f"no method matches '{search}'", remedy=remedy)
    return found


def names(incomplete: str = "") -> list[str]:
    """Return the names that begin with `incomplete`, for the shell's completion."""
    return [each.name for each in listed() if each.name.startswith(incomplete)]


def catalogue(found: Iterable[Listed]) -> RenderableType:
    """Return methods as one table per family."""
    families: dict[str, list[Listed]] = {}
    for each in found:
        families.setdefault(each.family, []).append(each)
    width = max(len(each.name) for members in families.values() for each in members)
    return Group(*(_family(name, members, width) for name, members in families.items()))


def _family(name: str, members: Sequence[Listed], width: int) -> Table:
    title = Text.assemble((name, "bold"), (f"  {members[0].family_words}", "dim"))
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="", expand=True)
    table.add_column("name", style="cyan", no_wrap=True, width=width)
    table.add_column("year", style="dim", no_wrap=True, width=4)
    table.add_column("what it does", ratio=1)
    table.add_column("checked", no_wrap=True, width=8)
    table.add_column("learned", no_wrap=True, width=7)
    for each in members:
        what = Text.assemble((each.title, "bold"), ". ", each.summary)
        checked = Text(each.confidence.replace("-only", ""), style=_CONFIDENCE[each.confidence])
        table.add_row(each.name, str(each.year or ""), what, checked, _RECORDED[each.recorded])
    return table
