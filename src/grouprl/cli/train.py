"""`grouprl init`, `grouprl train` and `grouprl recipes`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from grouprl.cli import completion
from grouprl.cli.learners import LearnerJob, run_learners
from grouprl.cli.options import AsJson
from grouprl.cli.quiet import Telling
from grouprl.cli.results import apart, put, put_data
from grouprl.core.errors import InputError
from grouprl.core.terminal import Terminal
from grouprl.processes.current_ranks import own_rank

if TYPE_CHECKING:
    from grouprl.training.loop import Summary
    from grouprl.training.starting import RunChoice

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A YAML file, or the name of a recipe.",
        autocompletion=completion.sources,
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; repeat for more. Example: optim.lr=1e-3"),
]


def init_command(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to write them.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Write a configuration, a reward and ten rows of data, which plan and train as they are.

    Nothing is overwritten. Change them into yours: the rows first, then the
    reward, then the model.

    [bold]Examples[/]
    grouprl init my-run
    cd my-run
    grouprl plan run.yaml
    grouprl train run.yaml
    """
    from grouprl.config.starter_files import write_starter

    paths = write_starter(folder)
    if as_json:
        put_data([str(path) for path in paths])
        return
    console = Terminal(highlight=False, soft_wrap=True)
    console.print(f"Wrote {', '.join(map(str, paths))}", markup=False)
    console.print(f"Next: grouprl plan {paths[0]}, then grouprl train {paths[0]}", markup=False)


def train_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A YAML file, the name of a recipe, or a run folder to resume.",
            autocompletion=completion.sources,
        ),
    ],
    changes: Changes = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run from its newest checkpoint.")] = False,
    folder: Annotated[Path | None, typer.Option(help="The run folder (default: a new one below runs/).")] = None,
    seed: Annotated[int | None, typer.Option(min=0, metavar="N", help="Short for --set seed=N.")] = None,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Resume although your code or data has changed.")
    ] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time of some steps goes.")] = False,
    profile_steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of steps to profile, after the first two.")
    ] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object when it has ended, and no progress.")
    ] = False,
) -> None:
    """Train a policy: warm-up if configured, reinforcement, evaluation, a report.

    [bold]Examples[/]
    grouprl train addition                         the embedded recipe
    grouprl train addition --set method=dr_grpo    another method
    grouprl train run.yaml --set optim.lr=1e-5 --seed 1
    grouprl train addition --resume                continue its newest run
    grouprl train runs/addition-dapo-s0 --resume   continue this one
    grouprl train runs/addition-dapo-s0 --resume --set steps=400   with more steps
    grouprl train addition --set steps=10 --profile     where a step's time goes

    --profile prints, and writes to profile.md in the run folder, what each
    part of a step takes (choosing, reading prompts, sampling: products,
    attention, sampling; rewards, forward, backward, optimiser, records),
    what its matrix products alone would take on this machine, and hence
    what share of a step is useful arithmetic. It changes no result.

    Ctrl-C ends the run after the current step and writes a checkpoint (exit
    code 130). So do a closed terminal (not under nohup) and SIGTERM, which
    waits five seconds for it (else 143). A closed output ends nothing. A
    run folder that exists is never overwritten. Paths in a YAML file are
    relative to that file, those of --set to the current folder.

    A resumed run continues exactly as it began: changes of settings, data or your
    code are refused with the difference (--accept-changes takes new code and
    data). --set may change steps, eval.every, run.checkpoint_every, run.keep,
    run.rollouts_every, run.record_updates, run.check_model, run.rank_timeout,
    model.tensor_parallel, model.context_parallel, model.offload,
    and workers and timeouts of reward and environment.
    """
    from grouprl.cli.quiet import silence_loading_bars
    from grouprl.training import starting

    given = (*(changes or []), *([f"seed={seed}"] if seed is not None else []))
    stated = partial(starting.stated_facts, source, given, folder, resume)
    if own_rank() > 0:
        silence_loading_bars()
        starting.follow_leader(stated)
        return
    chosen = starting.choose(source, given, folder, resume)
    for note in chosen.notes:
        typer.echo(f"note: {note}", err=True)
    if accept_changes and not resume:
        raise InputError("--accept-changes without --resume", "a new run uses your code as it is")
    if (config := starting.placed_config(chosen)) is not None:
        options = {
            "--accept-changes": accept_changes,
            "--json": as_json,
            "--quiet": Telling.quiet,
            "--profile": profile,
            f"--profile-steps={profile_steps}": profile,
        }
        told = tuple(name for name, wanted in options.items() if wanted)
        if code := run_learners(config, LearnerJob(source, chosen.place(), given, resume, told)):
            raise typer.Exit(code)
        return
    silence_loading_bars()
    with starting.leading_ranks(stated):
        summary = _trained(chosen, profile_steps if profile else 0, accept_changes, as_json)
    _tell(summary, as_json)


def _trained(chosen: RunChoice, profile: int, accept_changes: bool, as_json: bool) -> Summary:
    """Train in this process, and return the result of the run. `profile` is the number of steps that are profiled."""
    from grouprl.training.loop import train

    with apart(Telling.quiet):
        return train(
            chosen.config,
            folder=chosen.folder,
            resume=chosen.resume,
            console=Terminal(quiet=Telling.quiet or as_json),
            profile=profile,
            changes=chosen.changes,
            accept_changes=accept_changes,
        )


def _tell(summary: Summary, as_json: bool) -> None:
    """Print where the run is, for programs; exit with code 130 if it was interrupted."""
    if as_json:
        put_data({"folder": str(summary.folder), "interrupted": summary.interrupted})
    elif Telling.quiet:
        put(summary.folder)
    if summary.interrupted:
        raise typer.Exit(130)


def schema_command() -> None:
    """Print the JSON schema of a configuration, for editors and other programs.

    [bold]Examples[/]
    grouprl schema

    Store what it prints in a file, and name that in the first line of a YAML
    file, for editors with a YAML server:
    # yaml-language-server: $schema=grouprl.schema.json
    """
    from grouprl.config.json_schema import json_schema

    put_data(json_schema(), indent=1)


def recipes_command(
    as_json: AsJson = False,
) -> None:
    """List the embedded recipes: whole configurations that `train` and `plan` know by name.

    "gained" says in how many recorded seeds held-out completions got better
    significantly: the 95 % interval of the gain is above 0 (docs/recipes.md).

    [bold]Examples[/]
    grouprl recipes
    grouprl recipes --json
    grouprl plan addition      what the recipe does
    grouprl train addition     do it
    """
    from grouprl.config.recipe_list import recipe
    from grouprl.config.run import load_config, recipe_names

    columns = ("recipe", "task", "model", "method", "steps", "gained", "what it is")
    found = [(name, load_config(name), recipe(name)) for name in recipe_names()]
    rows = [(name, c.task_name, c.model.name, c.method_name, c.steps, r.record, r.words) for name, c, r in found]
    if as_json:
        put_data([dict(zip(columns, row, strict=True)) for row in rows], indent=2)
        return
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*map(str, row))
    Terminal().print(table)
