"""`grouprl laws`: predictions from a run's curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from grouprl.cli import completion
from grouprl.cli.options import AsJson
from grouprl.cli.results import put_data
from grouprl.core.errors import InputError
from grouprl.core.terminal import Terminal

if TYPE_CHECKING:
    from grouprl.monitor.run_laws import Curve, Fitted, LawEstimate

Row = tuple[Path, "Fitted | str"]
"""A run with a fitted law, or with the reason why there is none."""


def laws_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Run folders.",
            autocompletion=completion.runs,
        ),
    ],
    of: Annotated[
        Literal["train", "eval"], typer.Option(help="pass@1 of the completions trained on, or held-out.")
    ] = "train",
    compute: Annotated[
        Literal["tokens", "steps", "seconds"], typer.Option(help="The measure of compute in the sigmoid law.")
    ] = "tokens",
    skip: Annotated[float, typer.Option(min=0, help="Leave points below this compute out of the sigmoid law.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Fit the entropy law and the sigmoid law to runs, with 95 % intervals.

    Entropy law, R = -a e^H + b: what pass rate the entropy H buys, and the
    ceiling b - a when all of it is spent (arXiv:2505.22617). Sigmoid law,
    R = R0 + (A - R0)/(1 + (Cmid/C)^B): the ceiling A that more compute C
    tends to (ScaleRL, arXiv:2510.13786). Intervals are bootstrapped over the
    points of a run; they say nothing of other seeds.

    [bold]Examples[/]
    grouprl laws runs/addition-grpo-s0
    grouprl laws runs/* --of eval --json
    grouprl laws runs/addition-grpo-s0 --compute steps --skip 10
    """
    from grouprl.monitor.run_laws import curve
    from grouprl.view.runfiles import read_records

    rows: list[Row] = []
    for run in runs:
        path = run / "metrics.jsonl"
        if not path.is_file():
            raise InputError(f"{run} has no metrics.jsonl", "a run folder has one", "Check the path")
        rows += [(run, found) for found in _laws(curve(read_records(path), of, compute), skip)]
    if as_json:
        put_data([_data(run, found) for run, found in rows], indent=2)
    else:
        _print(rows)
    if all(isinstance(found, str) for _, found in rows):
        raise typer.Exit(1)


def _laws(points: Curve, skip: float) -> list[Fitted | str]:
    """Return both laws of a run, or the reason if one cannot be fitted."""
    from grouprl.monitor.run_laws import entropy_law, sigmoid_law

    found: list[Fitted | str] = []
    for name, fit in (("entropy", lambda: entropy_law(points)), ("sigmoid", lambda: sigmoid_law(points, skip))):
        try:
            found.append(fit())
        except InputError as error:
            found.append(f"{name}: {error}")
    return found


def _data(run: Path, found: Fitted | str) -> dict[str, object]:
    return {"run": str(run), **({"error": found} if isinstance(found, str) else asdict(found))}


def _print(rows: Sequence[Row]) -> None:
    console = Terminal(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("run", "law", "fitted numbers, 95 % interval", "R²", "points"):
        table.add_column(column, justify="right" if column in ("R²", "points") else "left", overflow="fold")
    for run, found in rows:
        if not isinstance(found, str):
            numbers = "\n".join(f"{name} {_words(one)}" for name, one in found.numbers.items())
            table.add_row(escape(run.name), found.law, numbers, f"{found.r2:.3f}", str(found.points))
    if table.row_count:
        console.print(table)
    for run, found in rows:
        for line in (found,) if isinstance(found, str) else (f"{found.law}: {words}" for words in found.warnings):
            console.print(f"{run.name}: {line}", style="yellow", markup=False)


def _words(one: LawEstimate) -> str:
    return (
        f"{one.value:.4g}"
        if one.low is None or one.high is None
        else f"{one.value:.4g} [{one.low:.4g}, {one.high:.4g}]"
    )
