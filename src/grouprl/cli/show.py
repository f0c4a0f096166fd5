"""`grouprl show`: a completion or an episode of a run, turn by turn; and `grouprl runs`: the runs of a folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from grouprl.cli import completion
from grouprl.cli.options import AsJson
from grouprl.cli.results import put_data
from grouprl.core.terminal import Terminal

STYLE = {"learned": "green", "worse": "bold red", "unclear": "yellow"}
WORDS = {"learned": "learned", "worse": "got worse", "unclear": "no gain shown"}
UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def show_command(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run folder.",
            autocompletion=completion.runs,
        ),
    ],
    step: Annotated[int | None, typer.Option(min=1, help="Step; by default the last that was stored.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Id of a prompt, as --list shows it.")] = None,
    sample: Annotated[int | None, typer.Option(help="Number of the completion to it.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List what the step holds instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print plain data for programs.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Marks instead of colours; always so in a pipe.")] = False,
) -> None:
    """Show a completion or an episode: turns, agents, observations, rewards, advantages per turn.

    Default: of the last stored step, the first prompt whose completions differ
    in reward. Tokens are coloured by what training did to them.

    [bold]Examples[/]
    grouprl show runs/keys-grpo-s0 --list
    grouprl show runs/keys-grpo-s0 --list --json
    grouprl show runs/keys-grpo-s0
    grouprl show runs/keys-grpo-s0 --json
    grouprl show runs/keys-grpo-s0 --step 40 --prompt keys/train/17 --sample 3
    """
    from grouprl.view.trajectory import find, of_step
    from grouprl.view.trajectory_text import entries, lines, table

    console = Terminal(highlight=False)
    if listed and as_json:
        columns, rows = entries(of_step(run, step))
        put_data([dict(zip(columns, row, strict=True)) for row in rows], indent=2)
        return
    if listed:
        console.print(table(of_step(run, step)))
        return
    if as_json:
        put_data(find(run, step, prompt, sample).data(), indent=2)
        return
    for line in lines(find(run, step, prompt, sample), plain=plain or not console.is_terminal):
        console.print(line, soft_wrap=plain or not console.is_terminal)


def runs_command(
    root: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The folder that holds runs, or a run.")] = Path(
        "runs"
    ),
    as_json: AsJson = False,
) -> None:
    """List runs: task, method, steps made, whether they run or have ended, the verdict, and their age.

    The verdict compares held-out prompts before and after training, as the
    report does. The run that was written last comes first.

    [bold]Examples[/]
    grouprl runs
    grouprl runs /data/runs --json
    """
    from grouprl.view.run_list import run_lines

    found = run_lines(root)
    if as_json:
        put_data([asdict(line) for line in found], indent=2)
        return
    console = Terminal(highlight=False)
    if not found:
        console.print(f"There are no runs in {root}. Begin with: grouprl train addition", markup=False)
        return
    table = Table("run", "task", "method", "steps", "state", "verdict", "age", box=None, pad_edge=False)
    for column in table.columns:
        column.overflow, column.no_wrap = "fold", column.header in ("steps", "state", "verdict", "age")
    for line in found:
        said = f"[{STYLE[line.verdict]}]{WORDS[line.verdict]}[/]" if line.verdict else "–"
        steps = f"{line.steps}/{line.of_steps}"
        named = map(escape, (line.name, line.task, line.method))
        table.add_row(*named, steps, line.state, said, _since(line.age))
    console.print(table)


def _since(seconds: float) -> str:
    size, unit = next(((size, unit) for size, unit in UNITS if seconds >= size), UNITS[-1])
    return f"{int(seconds // size)} {unit}"
