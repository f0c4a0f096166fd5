"""Methods, parts and tasks for listings, which load none of them unless their sources have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from grouprl.core.errors import InputError, suggest
from grouprl.core.json_types import JsonObject
from grouprl.core.plugins import announced
from grouprl.storage.source_cache import from_sources

LIBRARY = ("methods", "algorithms")
"""Packages whose sources define the methods and parts."""
BEST_KNOWN = (
    *("grpo", "dapo", "dr_grpo", "gspo", "rloo", "ppo", "reinforce_pp", "reinforce", "remax", "cispo"),
    *("gigpo", "vapo", "sapo", "gmpo", "grpo@trl", "grpo@verl"),
)
"""Methods that readers look for first."""
_RECORDED = {"learned": "green", "mixed": "yellow", "not shown": "bold red", "no record": "dim"}
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
    learned: str
    """Number of the places with recorded runs in which it learned, as in "12 of 13"; "" without a record."""


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


def catalogue(found: Sequence[Listed]) -> RenderableType:
    """Return methods with one line each: the best known first if there are several families, then family by family."""
    families: dict[str, list[Listed]] = {}
    for each in found:
        families.setdefault(each.family, []).append(each)
    width = max(len(each.name) for each in found)
    tables = [_family(name, members[0].family_words, members, width) for name, members in families.items()]
    known = {each.name: each for each in found}
    best = [known[name] for name in BEST_KNOWN if name in known]
    if len(families) > 1 and best:
        tables.insert(0, _family("best known", "", best, width))
    return Group(*tables)


def _family(name: str, words: str, members: Sequence[Listed], width: int) -> RenderableType:
    head = Text.assemble((name, "bold"), (f"  {words}", "dim"), no_wrap=True, overflow="ellipsis")
    table = Table(box=None, expand=True, show_header=False, pad_edge=False)
    table.add_column(style="cyan", no_wrap=True, width=width)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(no_wrap=True, width=8)
    table.add_column(no_wrap=True, width=8, justify="right")
    for each in members:
        checked = Text(each.confidence.replace("-only", ""), style=_CONFIDENCE[each.confidence])
        recorded = Text(each.learned or "–", style=_RECORDED[each.recorded])
        table.add_row(each.name, Text.assemble((each.title, "bold"), ". ", each.summary), checked, recorded)
    return Group(head, table, Text())


def legend() -> Text:
    """Return what the last two columns of the catalogue say."""
    return Text(
        "Last columns: how far formula and defaults were checked against the paper; in how many of the places where "
        "runs are recorded it learned (with one place: in how many runs).",
        style="dim",
    )
