"""`grouprl parts`: the pieces that methods are composed of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from grouprl.cli import completion
from grouprl.cli.listing import ListedPart, listed_parts
from grouprl.cli.options import AsJson
from grouprl.cli.results import put_data
from grouprl.core.errors import InputError, suggest
from grouprl.core.terminal import Terminal

if TYPE_CHECKING:
    from grouprl.methods.parts import Described


def parts_command(
    name: Annotated[
        str,
        typer.Argument(
            help="A part's name; without one all are listed.",
            autocompletion=completion.parts,
        ),
    ] = "",
    kind: Annotated[
        str,
        typer.Option(
            metavar="KIND", help="Only one kind, such as 'advantage' or 'objective'.", autocompletion=completion.kinds
        ),
    ] = "",
    plugin: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="A file or module of yours to import; repeat for more."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the parts that methods are composed of, or explain one: settings, formula, what it reads.

    In a configuration a part is given under its kind:
    method: {base: grpo, advantage: {part: relative, scale: none}}

    [bold]Examples[/]
    grouprl parts                          every part, kind by kind
    grouprl parts --kind advantage         one kind
    grouprl parts clipped                  settings, defaults, formula
    grouprl parts --plugin my_parts.py     with yours
    """
    if not (name or plugin or as_json):
        Terminal().print(_listing(_of_kind(kind)))
        return
    from grouprl.algorithms.part import PARTS, RULES
    from grouprl.core.plugins import load_plugins
    from grouprl.methods.parts import described

    load_plugins([str(Path(each)) if each.endswith(".py") else each for each in plugin or []])
    if kind and kind not in RULES:
        raise InputError(f"there are no parts of kind '{kind}'", remedy=suggest(kind, RULES))
    found = described(kind, name)
    if not found:
        known = {each for k in RULES if kind in ("", k) for each in PARTS[k]}
        raise InputError(f"there is no part '{name}'{f' of kind {kind}' * bool(kind)}", remedy=suggest(name, known))
    if as_json:
        put_data([each.data() for each in found], indent=2, default=str)
    elif name:
        Terminal().print(Group(*(_card(each) for each in found)))
    else:
        Terminal().print(_listing([ListedPart(**each.line()) for each in found]))


def _of_kind(kind: str) -> list[ListedPart]:
    """Return the lines of the parts of a kind; raises InputError if there is no such kind."""
    found = listed_parts()
    kinds = {each.kind for each in found}
    if kind and kind not in kinds:
        raise InputError(f"there are no parts of kind '{kind}'", remedy=suggest(kind, kinds))
    return [each for each in found if kind in ("", each.kind)]


def _listing(found: Sequence[ListedPart]) -> RenderableType:
    width = max(len(each.name) for each in found)
    blocks: list[RenderableType] = []
    for kind, rule in {each.kind: each.rule for each in found}.items():
        title = Text.assemble((kind, "bold"), (f"  {rule}", "dim"))
        table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="", expand=True)
        table.add_column("part", style="cyan", no_wrap=True, width=width)
        table.add_column("what it does", ratio=2)
        table.add_column("settings", style="dim", ratio=1)
        for each in found:
            if each.kind == kind:
                table.add_row(each.name, Text(each.summary), Text(", ".join(each.settings)))
        blocks.append(table)
    return Group(*blocks, Text("grouprl parts NAME", style="dim"))


def _card(part: Described) -> RenderableType:
    blocks: list[RenderableType] = [
        Text.assemble((part.name, "bold cyan"), f"  {part.kind}", (f"  {part.rule}", "dim"))
    ]
    blocks.append(Text(part.explanation))
    rows = [("does", part.words), ("formula", part.formula), ("reads", ", ".join(part.needs))]
    rows += [("couples", f"rows of a {part.couples}" if part.couples != "sequence" else "")]
    rows += [(f"logs {name}", words) for name, words in part.metrics.items()]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(ratio=1)
    for label, words in rows:
        if words:
            grid.add_row(label, Text(words))
    blocks += [Text(), grid]
    if part.settings:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in ("setting", "default", "type"):
            table.add_column(column, overflow="fold")
        for row in part.settings:
            table.add_row(row["name"], Text(row["shown"]), Text(row["type"]))
        blocks.append(table)
    blocks += [Text(f"From {part.module}", style="dim"), Text(f"Write: {part.example}", style="dim"), Text()]
    return Group(*blocks)
