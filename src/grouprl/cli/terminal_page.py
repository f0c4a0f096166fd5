"""Sections of a page in the terminal: headings, facts and plain tables."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


def heading(console: Console, text: str) -> None:
    """Print a heading after an empty line."""
    console.print(Text(f"\n{text}", style="bold"))


def facts(rows: Iterable[tuple[str, str]]) -> Padding:
    """Return a table of labels, each with its text."""
    table = plain_table("", "")
    for label, value in rows:
        table.add_row(Text(label, style="cyan"), Text(value))
    return Padding(table, 0)


def plain_table(*columns: str) -> Table:
    """Return a table without rules and headers, whose first column is not wrapped."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", show_header=False)
    table.add_column(columns[0], no_wrap=True, min_width=14)
    for column in columns[1:]:
        table.add_column(column, overflow="fold")
    return table
