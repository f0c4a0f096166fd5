"""`grouprl train` and `grouprl recipes`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.table import Table

from grouprl.cli import completion
from grouprl.cli.learners import LearnerJob, run_learners
from grouprl.cli.options import AsJson
from grouprl.cli.results import apart, put
from grouprl.core.errors import InputError
from grouprl.core.terminal import Terminal
from grouprl.processes.current_ranks import launched, own_rank, ranks_requested

if TYPE_CHECKING:
    from grouprl.config.run import Config

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


class Chosen(NamedTuple):
    """The configuration and folder of a `train` command."""

    config: Config
    folder: Path | None
    resume: bool
    changes: tuple[str, ...] = ()


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
        int, typer.Option(min=1, metavar="N", help="How many steps to profile, after the first two.")
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
    code 130). So does SIGTERM, which waits five seconds for it (else 143). A
    run folder that exists is never overwritten. Paths in a YAML file are
    relative to that file, those of --set to the current folder.

    A resumed run continues exactly as it began: changes of settings, data or your
    code are refused with the difference (--accept-changes takes new code and
    data). --set may change steps, eval.every, run.checkpoint_every, run.keep,
    run.rollouts_every, run.rank_timeout, model.tensor_parallel, model.offload,
    and workers and timeouts of reward and environment.
    """
    if own_rank() > 0:
        follow_leader()
        return
    given = (*(changes or []), *([f"seed={seed}"] if seed is not None else []))
    chosen = choose(source, list(given), folder, resume)
    if accept_changes and not resume:
        raise InputError("--accept-changes without --resume", "a new run uses your code as it is")
    from grouprl.cli.quiet import Telling, silence_loading_bars

    steps = profile_steps if profile else 0
    if (config := placed_config(chosen)) is not None:
        options = {
            "--accept-changes": accept_changes,
            "--json": as_json,
            "--quiet": Telling.quiet,
            "--profile": profile,
            f"--profile-steps={profile_steps}": profile,
        }
        told = tuple(name for name, wanted in options.items() if wanted)
        if code := run_learners(config, LearnerJob(source, run_folder(chosen), given, resume, told)):
            raise typer.Exit(code)
        return
    from grouprl.training.loop import train

    silence_loading_bars()
    with leading_ranks(), apart(Telling.quiet):
        summary = train(
            chosen.config,
            folder=chosen.folder,
            resume=chosen.resume,
            console=Terminal(quiet=Telling.quiet or as_json),
            profile=steps,
            changes=chosen.changes,
            accept_changes=accept_changes,
        )
    if as_json:
        put(json.dumps({"folder": str(summary.folder), "interrupted": summary.interrupted}))
    elif Telling.quiet:
        put(summary.folder)
    if summary.interrupted:
        raise typer.Exit(130)


def follow_leader() -> None:
    """Do the part of a rank other than the first; signals are for rank 0, which ends the run in good order."""
    from grouprl.cli.quiet import silence_loading_bars
    from grouprl.policy.ranks import follow

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    silence_loading_bars()
    follow()


@contextmanager
def leading_ranks() -> Iterator[None]:
    """Lead the other processes that a launcher has started for this run, where there are any."""
    if ranks_requested() == 1:
        yield
        return
    from grouprl.policy.ranks import leading

    with leading():
        yield


def recipes_command(
    as_json: AsJson = False,
) -> None:
    """List the embedded recipes: whole configurations that `train` and `plan` know by name.

    "gained" says in how many recorded seeds held-out completions got better for
    sure: 95 % intervals before and after do not overlap (docs/recipes.md).

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
        put(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2))
        return
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*map(str, row))
    Terminal().print(table)


def choose(source: str, changes: list[str], folder: Path | None, resume: bool) -> Chosen:
    """Return configuration and folder of a `train` command.

    Raises:
        InputError: a run folder without `--resume`, nothing to resume, another folder for a run that is resumed.
    """
    from grouprl.config.run import load_config, recipe_names
    from grouprl.config.yaml_files import is_file

    if not source.strip():
        raise InputError("SOURCE is empty", "it is a YAML file, the name of a recipe, or a run folder")
    if Path(source).is_dir():
        return _run_folder(Path(source), changes, folder, resume)
    if resume and folder is None and not is_file(Path(source)) and source not in recipe_names():
        from grouprl.storage.run_folder import runs_meant

        raise InputError(f"there is no run {source}", "--resume continues a run", runs_meant(Path(source)))
    config = load_config(source, changes)
    if resume and folder is None and config.run.folder:
        folder = Path(config.run.folder)  # the file says where its run is
    if resume and folder is None:
        folder = newest_run(config, source)
    elif resume and folder is not None and (folder / "config.yaml").is_file():
        return _begun(config, folder, changes)
    return Chosen(config, folder, resume)


def placed_config(chosen: Chosen) -> Config | None:
    """Return the configuration, with its changes, of a run whose learners this process only starts and watches.

    None: this process trains by itself, or is one of those that do.
    """
    from grouprl.config.extending import changed_config
    from grouprl.storage.run_folder import RunFolder

    config = chosen.config
    if launched():
        return None
    if chosen.resume and chosen.changes and chosen.folder is not None:
        config = changed_config(RunFolder(chosen.folder), chosen.changes)
    least = 2 if config.cluster.ray == "off" else 1
    return config if config.cluster.learners >= least else None


def run_folder(chosen: Chosen) -> Path:
    """Return where the run will be, or is."""
    from grouprl.config.run import default_folder

    return chosen.folder if chosen.folder is not None else default_folder(chosen.config)


def _begun(given: Config, folder: Path, changes: list[str]) -> Chosen:
    """Return the run of `folder`, resumed by a file: what `--set` changes is a change, all else is as it began."""
    from grouprl.config.extending import changed_config, kept_settings, made_by
    from grouprl.storage.run_folder import RunFolder

    run = RunFolder(folder)
    made = made_by(run, changes)
    changed = {change.partition("=")[0] for change in made}
    changed_config(run, made)
    for kept in kept_settings(run, given):
        if kept.partition(" = ")[0] not in changed:
            typer.echo(f"note: the run keeps its own {kept}", err=True)
    return Chosen(given, folder, True, made)


def _run_folder(run: Path, changes: list[str], folder: Path | None, resume: bool) -> Chosen:
    from grouprl.config.run import load_config

    stored = run / "config.yaml"
    if not stored.is_file():
        raise InputError(f"{run} is not a run folder", "a run folder holds config.yaml", "Give a YAML file or a recipe")
    if not resume:
        raise InputError(
            f"{run} is a run folder",
            "a run never overwrites another",
            f"Continue it with --resume, or start afresh from its settings: grouprl train {stored}",
        )
    if folder is not None:
        raise InputError(f"{run} --resume with --folder {folder}", "a run continues in its own folder", "Leave it out")
    return Chosen(load_config(str(stored), plugins=False), run, True, tuple(changes))  # a plugin may have moved


def newest_run(config: Config, source: str, root: Path = Path("runs")) -> Path:
    """Return the run folder below `root` that was last written with this very configuration.

    Raises:
        InputError: there is none.
    """
    stored = [path for path in root.glob("*/config.yaml") if _fingerprint(path) == config.fingerprint()]
    if not stored:
        raise InputError(
            f"there is no run of '{source}' with these settings below {root}/",
            "--resume continues a run that was begun with the same settings",
            f"Name its folder (grouprl train {root}/NAME --resume), or start it without --resume",
        )
    return max(stored, key=lambda path: (path.parent / "metrics.jsonl", path)[_missing(path)].stat().st_mtime).parent


def _missing(path: Path) -> bool:
    return not (path.parent / "metrics.jsonl").exists()


def _fingerprint(path: Path) -> str | None:
    """Return the fingerprint of a stored configuration; None if this version cannot read it."""
    from grouprl.config.run import load_config

    try:
        return load_config(str(path), plugins=False).fingerprint()
    except InputError:
        return None
