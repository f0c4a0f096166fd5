"""`grouprl export` and `grouprl report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grouprl.cli import completion
from grouprl.cli.options import AsJson
from grouprl.cli.results import put_data
from grouprl.core.terminal import Terminal

RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run folder.",
        autocompletion=completion.runs,
    ),
]


def export_command(
    run: RunArgument,
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="A folder that does not exist yet or is empty.")],
    checkpoint: Annotated[
        int | None, typer.Option(metavar="STEP", help="The checkpoint after STEP steps instead of the final model.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a trained policy as an ordinary Hugging Face folder.

    [bold]Examples[/]
    grouprl export runs/addition-grpo-s0 my-model
    grouprl export runs/addition-grpo-s0 half-way --checkpoint 80

    [bold]Then[/]
    AutoModelForCausalLM.from_pretrained("my-model")
    grouprl eval my-model --task addition
    """
    from grouprl.cli.quiet import silence_loading_bars, telling
    from grouprl.training.export import export

    silence_loading_bars()
    when = export(run, dest, checkpoint)
    if as_json:
        put_data({"run": str(run), "wrote": when, "folder": str(dest)})
    else:
        telling().print(f"Wrote {when} of {run} to {dest}")


def report_command(run: RunArgument, as_json: AsJson = False) -> None:
    """Rewrite the report of a run: curves, completions before and after, health, on one self-contained page.

    Training does this at its end; this command is for runs that are still
    going or were stopped.

    [bold]Example[/]
    grouprl report runs/addition-grpo-s0
    """
    from grouprl.view.report import write_report

    page = write_report(run)
    if as_json:
        put_data({"run": str(run), "report": str(page)})
    else:
        Terminal().print(f"Report: {page}", highlight=False, soft_wrap=True)
