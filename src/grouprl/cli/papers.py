"""`grouprl papers`: the literature, and what implements each paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.progress import track
from rich.table import Table
from rich.text import Text

from grouprl.cli import completion
from grouprl.cli.options import AsJson
from grouprl.cli.results import put_data
from grouprl.core.errors import InputError, suggest

if TYPE_CHECKING:
    from grouprl.papers import Standing

_STYLE = {"entry": "green", "recipe": "green", "part": "yellow", "planned": "red"}


def papers_command(
    query: Annotated[
        list[str] | None, typer.Argument(metavar="[QUERY]", help="Words to look for, or: show NUMBER")
    ] = None,
    scope: Annotated[
        str,
        typer.Option(
            help="Only core, recipe, adjacent or outside.",
            autocompletion=completion.scopes,
        ),
    ] = "",
    status: Annotated[
        str,
        typer.Option(
            help="Only entry, recipe, part, command, planned, adjacent or outside.", autocompletion=completion.statuses
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Search the literature: what implements each paper, and what is missing.

    [bold]Examples[/]
    grouprl papers                                 all of them
    grouprl papers length reward --scope core
    grouprl papers --status planned
    grouprl papers show 118                        one paper, with its commands
    """
    words, console = query or [], Console(highlight=False)
    alone = words[:1] == ["show"] and len(words) == 2
    if words == ["show"]:
        raise InputError("papers show without a number", "it shows one paper", "Its number is in: grouprl papers WORDS")
    if alone and (scope or status):
        raise InputError(
            "papers show NUMBER with --scope or --status", "they choose among many papers", "Leave them out"
        )
    found = [_numbered(words[1])] if alone else _searched(words, scope, status)
    if as_json:
        told = Console(stderr=True)
        data = [each.data() for each in track(found, "planning their commands", console=told, transient=True)]
        put_data(data[0] if alone else data, indent=2)
    elif alone:
        show_paper(found[0], console)
    else:
        list_papers(found, console)


def list_papers(found: Sequence[Standing], console: Console) -> None:
    """Print papers as a table and count them by status."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
    table.add_column("no.", style="dim", justify="right", no_wrap=True, width=3)
    table.add_column("paper", ratio=1)
    table.add_column("implemented by", width=18, overflow="fold")
    for each in found:
        what = Text.assemble((each.paper.title, "bold"), "\n", (each.paper.summary, "dim"))
        names = [("\n", ""), (", ".join(each.names), "cyan")] if each.names else []
        table.add_row(
            str(each.paper.number), what, Text.assemble((each.status, _STYLE.get(each.status, "dim")), *names)
        )
    console.print(table)
    console.print(Text(count_words(found), style="bold"))
    console.print(Text("grouprl papers show NUMBER", style="dim"))


def show_paper(each: Standing, console: Console) -> None:
    """Print one paper: its data, its implementation here, and the commands."""
    from grouprl.papers import SCOPES, STATUSES

    paper = each.paper
    console.print(Text.assemble((str(paper.number), "bold cyan"), "  ", (paper.title, "bold")))
    rows = [
        ("method", paper.method),
        ("idea", paper.summary),
        ("scope", f"{paper.scope}: {SCOPES[paper.scope]} ({paper.kind})"),
        ("formulas", f"{paper.confidence} (how well they could be checked)"),
        ("here", f"{each.status}: " + ", ".join([*each.names, STATUSES[each.status]])),
        ("", paper.note),
        ("dialects", ", ".join(each.dialects)),
    ]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, width=8)
    grid.add_column()
    for label, words in rows:
        if words:
            grid.add_row(label, Text(words))
    console.print(Padding(grid, (0, 0, 0, 2)))
    for command in each.commands():
        why = "   says why it cannot train there" if command.startswith("grouprl plan") else ""
        console.print(Text.assemble((f"  {command}", "cyan"), (why, "dim")), soft_wrap=True)


def count_words(found: Iterable[Standing]) -> str:
    """State the number of papers, in all and of each status."""
    from grouprl.papers import counts

    counted = counts(found)
    total = sum(counted.values())
    return f"{total} paper{'s' * (total != 1)}: " + ", ".join(f"{n} {status}" for status, n in counted.items())


def _numbered(number: str) -> Standing:
    from grouprl.papers import listing, standings

    if not number.isdigit():
        raise InputError(f"'{number}' is not a paper's number", remedy=f"Search by words: grouprl papers {number}")
    return next(each for each in standings() if each.paper == listing(int(number)))


def _searched(words: Sequence[str], scope: str, status: str) -> list[Standing]:
    from grouprl.papers import SCOPES, STATUSES, search

    for option, value, known in (("--scope", scope, SCOPES), ("--status", status, STATUSES)):
        if value and value not in known:
            raise InputError(f"unknown {option} '{value}'", remedy=suggest(value, known))
    found = search(" ".join(words), scope, status)
    if not found:
        raise InputError(f"no paper matches '{' '.join(words)}'", remedy="Fewer words or options find more")
    return found
