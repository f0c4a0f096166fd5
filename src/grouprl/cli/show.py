"""`grouprl show`: a completion or an episode of a run, turn by turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from grouprl.cli import completion
from grouprl.cli.results import put
from grouprl.core.terminal import Terminal


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
        put(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2, ensure_ascii=False))
        return
    if listed:
        console.print(table(of_step(run, step)))
        return
    if as_json:
        put(json.dumps(find(run, step, prompt, sample).data(), indent=2, ensure_ascii=False))
        return
    for line in lines(find(run, step, prompt, sample), plain=plain or not console.is_terminal):
        console.print(line, soft_wrap=plain or not console.is_terminal)
