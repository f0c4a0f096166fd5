"""`grouprl sandbox`: the containment of model-written code on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grouprl.cli.options import AsJson
from grouprl.cli.results import put_data
from grouprl.core.json_types import JsonObject
from grouprl.core.terminal import Terminal

if TYPE_CHECKING:
    from grouprl.sandbox import Level
    from grouprl.sandbox.box import Sandbox

ESCAPED = 1
"""Exit code if something escaped that must be contained."""
Row = JsonObject


def sandbox_command(
    allow: Annotated[str, typer.Option(help="Lowest acceptable level: namespaces, landlock or rlimits.")] = "rlimits",
    level: Annotated[str | None, typer.Option(help="Examine this level instead of the best one.")] = None,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Try every escape, a second or so each.")] = True,
    as_json: AsJson = False,
) -> None:
    """Show how model-written code is contained on this machine, what is not contained, and try to escape.

    Code tasks and the Python tool refuse to run below the level landlock
    unless their option sandbox.allow says otherwise.

    [bold]Examples[/]
    grouprl sandbox
    grouprl sandbox --no-check
    grouprl sandbox --level landlock

    [bold]Exit codes[/] 0 all contained that should be, 1 something escaped, 2 no such level here.
    """
    from grouprl.sandbox import Sandbox

    with Sandbox(allow, level=level) as sandbox:  # type: ignore[arg-type]  # unknown names raise InputError
        console = Terminal(highlight=False)
        if not as_json:
            _show_level(sandbox.level, console)
        rows = _checked(sandbox) if check else []
        if as_json:
            put_data({**_facts(sandbox.level), "escapes": rows}, indent=2)
        elif rows:
            _show_rows(rows, console)
    if any(row["must_be_contained"] and not row["contained"] for row in rows):
        raise typer.Exit(ESCAPED)


def _facts(level: Level) -> Row:
    return {
        "level": level.name,
        "contained": level.contains,
        "not_contained": level.lacks,
        "refused": dict(level.refused),
    }


def _checked(sandbox: Sandbox) -> list[Row]:
    from grouprl.sandbox.attack_targets import self_check

    return [
        {"escape": escape.name, "aim": escape.aim, "must_be_contained": must, "contained": contained}
        for escape, must, contained in self_check(sandbox)
    ]


def _show_level(level: Level, console: Console) -> None:
    console.print(Text("Level: ").append(level.name, style="bold red" if level.name == "rlimits" else "bold green"))
    for name, why in level.refused.items():
        console.print(Text(f"  {name} is refused here: {why}"))
    for title, lines in (("Contained", level.contains), ("Not contained", level.lacks)):
        console.print(Text(title, style="bold"))
        for line in lines:
            console.print(Text(f"  {line}"))


def _show_rows(rows: list[Row], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("escape", "what it tries", ""):
        table.add_column(column, overflow="fold")
    for row in rows:
        fine, must = row["contained"], row["must_be_contained"]
        verdict = Text("contained", style="green") if fine else Text("ESCAPED", style="bold red" if must else "yellow")
        table.add_row(row["escape"], row["aim"], verdict)
    console.print(table)
    bad = [row["escape"] for row in rows if row["must_be_contained"] and not row["contained"]]
    known = sum(not row["contained"] for row in rows) - len(bad)
    if bad:
        console.print(Text(f"{len(bad)} escaped that must be contained: {', '.join(bad)}", style="bold red"))
    else:
        more = f"; {known} escaped, as this level says" if known else ""
        console.print(Text(f"Everything that this level should contain is contained{more}", style="bold green"))
