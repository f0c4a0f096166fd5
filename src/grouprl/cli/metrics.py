"""`grouprl metrics`: the glossary in the terminal."""

from __future__ import annotations

from fnmatch import fnmatchcase

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grouprl.core.terminal import Terminal
from grouprl.monitor.glossary import GLOSSARY, GROUPS, Metric, lookup


def show_metrics(name: str | None = None, console: Console | None = None) -> None:
    """Print one entry, all entries that match a pattern such as `eval/*`, a group of them, or the whole glossary.

    Raises InputError for an undefined name.
    """
    console = console or Terminal()
    found = chosen(name)
    if name is None or name in GROUPS or ("*" in name and len(found) > 1):
        _print_groups(found, console)
    else:
        _print_entry(name, found[0], console)


def chosen(name: str | None = None) -> list[Metric]:
    """Return the entries that match a name, a group or a pattern, or all; raises InputError if none matches."""
    if name is None:
        return list(GLOSSARY.values())
    if name in GROUPS:
        return [metric for metric in GLOSSARY.values() if metric.group == name]
    matching = [metric for metric in GLOSSARY.values() if "*" in name and fnmatchcase(metric.name, name)]
    return matching or [lookup(name)]


def _print_entry(name: str, metric: Metric, console: Console) -> None:
    title = Text(name, style="bold cyan")
    if metric.name != name:
        title.append(f"  (one of {metric.name})", style="dim")
    console.print(title)
    unit = metric.unit if metric.level == "token" else f"{metric.unit}, mean over {metric.level}s"
    for label, value in (("Unit", unit), ("Is", metric.words), ("Look for", metric.good)):
        row = Table.grid(padding=(0, 1))
        row.add_column(width=9, style="dim")
        row.add_column()
        row.add_row(label, Text(value))
        console.print(row)


def _print_groups(metrics: list[Metric], console: Console) -> None:
    for group in GROUPS:
        entries = [m for m in metrics if m.group == group]
        if entries:
            console.print(_table(group, entries))
    console.print(Text("grouprl metrics NAME shows one entry; a * stands for a family of names.", style="dim"))


def _table(group: str, entries: list[Metric]) -> Table:
    table = Table(title=group.capitalize(), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, expand=True)
    table.add_column("metric", style="cyan", no_wrap=True, min_width=18)
    table.add_column("unit", style="dim", no_wrap=True, min_width=10)
    table.add_column("what it is", ratio=1)
    table.add_column("what to look for", ratio=1)
    for metric in entries:
        table.add_row(Text(metric.name), Text(metric.unit), Text(metric.words), Text(metric.good))
    return table
