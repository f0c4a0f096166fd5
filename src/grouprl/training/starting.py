"""Starting and resuming a run from what a user names: a recipe, a file, a run folder, or a configuration.

The command line and `grouprl.train` choose by the same functions. Modules that load torch are imported where they are
used, so that a wrong name is reported at once.
"""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.config.extending import changed_config, kept_settings, made_by
from grouprl.config.rank_facts import settings_facts, version_facts
from grouprl.config.run import Config, default_folder, load_config, parse_config, recipe_names, with_absolute_paths
from grouprl.config.yaml_files import is_file
from grouprl.core.errors import InputError, RunError, shortened
from grouprl.core.importing import refuse_within_import
from grouprl.processes.begun_run import begun_by_torchrun, remembers
from grouprl.processes.current_ranks import launched, own_rank, ranks_requested, starts
from grouprl.processes.own_command import run_command
from grouprl.processes.roll_call import Facts
from grouprl.protocols.run_events import RunListener
from grouprl.storage.run_folder import RunFolder, runs_meant

if TYPE_CHECKING:
    from rich.console import Console

    from grouprl.rollout.local.sampler import MakeEngine
    from grouprl.view.loaded_run import LoadedRun


@dataclass(frozen=True)
class RunChoice:
    """The run that a user means: its configuration, its folder, and whether it has begun."""

    config: Config
    folder: Path | None
    resume: bool
    changes: tuple[str, ...] = ()
    """Changes `key=value` of the settings with which the run began."""
    notes: tuple[str, ...] = ()
    """Sentences for the user."""

    def place(self) -> Path:
        """Return the folder in which the run is, or will be."""
        return self.folder if self.folder is not None else default_folder(self.config)


def train(
    source: str | Path | Mapping[str, object] | Config,
    changes: Sequence[str] = (),
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    accept_changes: bool = False,
    callbacks: Sequence[RunListener] = (),
    engine: MakeEngine | None = None,
    console: Console | None = None,
) -> LoadedRun | None:
    """Train a policy, as `grouprl train` does, and return the run, as `load_run` would.

    Its `finished` is False if it was interrupted. Under torchrun every process calls this: the first one trains and
    tells `callbacks`, the others work as its ranks and get None. Learners of `cluster.learners` are started as by the
    command line, and this process waits for them.

    Args:
        source: a recipe, a YAML file, a run folder to resume, or a configuration: `Config`, or data like YAML's, in
            which functions, classes, methods, parts and tasks of a file may stand as Python objects.
        changes: settings `key=value` that differ, as in `--set`; for a file, a recipe or a run that is resumed.
        folder: the run folder; by default a new one below runs/.
        resume: continue the run in the folder, or the newest run with these settings.
        accept_changes: resume although the user's code or data has changed.
        callbacks: listeners that receive the run's events, in this order.
        engine: makes the policy's sampler in place of `sampling.engine`.
        console: where progress is shown; by default the terminal.

    Raises:
        InputError: an error that the user can fix, such as `callbacks` with `cluster.learners`.
        RunError: the run cannot continue. Its files stay intact.
    """
    refuse_within_import("grouprl.train")
    check_listeners(callbacks)
    stated = partial(stated_facts, source, changes, folder, resume)
    if own_rank() > 0:
        follow_leader(stated)
        return None
    place = None if folder is None else Path(folder)
    if isinstance(source, Mapping) and not source:
        raise InputError("the configuration is empty", "a configuration names at least its task", 'Set "task"')
    if isinstance(source, (str, Path)):
        chosen = choose(str(source), changes, place, resume)
    else:
        chosen = choose_config(source if isinstance(source, Config) else parse_config(source), changes, place, resume)
    from grouprl.core.terminal import Terminal
    from grouprl.policy.own_state import own_state
    from grouprl.training.loop import train as train_config
    from grouprl.view.loaded_run import load_run

    console = console or Terminal()
    for note in chosen.notes:
        console.print(f"note: {note}", highlight=False, markup=False)
    if (placed := placed_config(chosen)) is not None:
        interrupted = _train_by_learners(placed, chosen, callbacks, engine, accept_changes, console.quiet)
        return _left_by_learners(chosen.place(), interrupted)
    with own_state("grouprl.train"), leading_ranks(stated):
        made = train_config(
            chosen.config,
            folder=chosen.folder,
            resume=chosen.resume,
            console=console,
            engine=engine,
            changes=chosen.changes,
            accept_changes=accept_changes,
            listeners=callbacks,
        )
    return load_run(made.folder)


def _train_by_learners(
    config: Config,
    chosen: RunChoice,
    callbacks: Sequence[RunListener],
    engine: MakeEngine | None,
    accept_changes: bool,
    quiet: bool,
) -> bool:
    """Train in the learners that the configuration asks for, which are processes of their own.

    Returns:
        True if they were interrupted.

    Raises:
        InputError: objects of this process are to be told of the run, or to sample for it.
        RunError: the run ended with an error.
    """
    if callbacks or engine is not None:
        raise InputError(
            f"cluster.learners = {config.cluster.learners} with {'callbacks' if callbacks else 'an engine'}",
            "learners are processes of their own, which objects of this one do not reach",
            "Leave it out and read the run when it has ended, or start this program by torchrun",
        )
    options = [*["--quiet"] * quiet, *["--accept-changes"] * accept_changes]
    folder = str(chosen.place().absolute())
    if chosen.resume:
        sets = [word for change in chosen.changes for word in ("--set", change)]
        return run_command(["train", folder, "--resume", *sets, *options])
    with tempfile.TemporaryDirectory() as home:
        settings = Path(home) / "run.yaml"
        settings.write_text(with_absolute_paths(config).dump(), encoding="utf-8")
        return run_command(["train", str(settings), "--folder", folder, *options])


def _left_by_learners(folder: Path, interrupted: bool) -> LoadedRun:
    """Return the run that learners have made.

    Raises:
        KeyboardInterrupt: they were interrupted before they had begun it, or had continued one that was finished.
    """
    from grouprl.view.loaded_run import load_run

    if interrupted and not (folder / "config.yaml").is_file():
        raise KeyboardInterrupt
    made = load_run(folder)
    if interrupted and made.finished:  # its summary is the one of before
        raise KeyboardInterrupt
    return made


def check_listeners(callbacks: object) -> None:
    """Check that callbacks are listeners, in a list.

    Raises:
        InputError: they are not.
    """
    rule = "callbacks are a list of objects of classes that derive from grouprl.RunListener"
    if not isinstance(callbacks, list | tuple):
        raise InputError(f"callbacks = {shortened(callbacks)}", rule, "Put it into a list")
    for each in callbacks:
        if isinstance(each, type):
            raise InputError(f"callbacks: the class {each.__name__}", rule, f"Make an object of it: {each.__name__}()")
        if not isinstance(each, RunListener):
            raise InputError(f"callbacks: {shortened(each)}", rule, "Derive its class from grouprl.RunListener")


def choose(source: str, changes: Sequence[str] = (), folder: Path | None = None, resume: bool = False) -> RunChoice:
    """Return the run that is given as a recipe, a file or a run folder.

    Raises:
        InputError: a run folder is given without `resume`, there is nothing to resume, or a run is resumed in another
            folder.
    """
    if not source.strip():
        raise InputError("SOURCE is empty", "it must be a YAML file, the name of a recipe, or a run folder")
    if not resume and starts() and (begun := _begun_in(source, changes, folder)) is not None:
        return choose(source, (), begun, True)  # with the settings that it began with
    if Path(source).is_dir():
        return _choose_folder(Path(source), changes, folder, resume)
    if resume and folder is None and not is_file(Path(source)) and source not in recipe_names():
        raise InputError(f"there is no run {source}", "--resume continues a run", runs_meant(Path(source)))
    return _choose_by(load_config(source, changes), source, changes, folder, resume)


def _begun_in(source: str, changes: Sequence[str], folder: Path | None) -> Path | None:
    """Return the folder of a run that an earlier start of the same command has begun: the one that torchrun remembers,
    or, where it remembers nothing, the one that the command or its configuration names.
    """
    if Path(source).is_dir():
        return None
    config = load_config(source, changes)
    begun = begun_by_torchrun(config.fingerprint()) if remembers() else folder or config.run.folder
    return Path(begun) if begun and (Path(begun) / "config.yaml").is_file() else None


def choose_config(config: Config, changes: Sequence[str], folder: Path | None, resume: bool) -> RunChoice:
    """Return the run that is given as a configuration.

    Raises:
        InputError: there is nothing to resume, or `changes` are given for a new run.
    """
    if changes and not resume:
        raise InputError(
            f"changes {', '.join(changes)} of a configuration",
            "changes are for a recipe, a file or a run that is resumed",
            "Set them in the configuration itself",
        )
    return _choose_by(config, config.task_name, changes, folder, resume)


def _choose_by(config: Config, name: str, changes: Sequence[str], folder: Path | None, resume: bool) -> RunChoice:
    if resume and folder is None and not config.run.folder:
        return RunChoice(config, newest_run(config, name), True)
    if resume:
        folder = folder or Path(str(config.run.folder))
        changes = [change for change in changes if not change.startswith("run.folder=")]  # says which run is meant
        if (folder / "config.yaml").is_file():
            return _choose_begun(config, folder, changes)
    return RunChoice(config, folder, resume)


def _choose_begun(given: Config, folder: Path, changes: Sequence[str]) -> RunChoice:
    """Return the run of `folder`, resumed from a file: the given changes apply, other settings stay as they were."""
    run = RunFolder(folder)
    made = made_by(run, changes)
    changed = {"run.folder", *(change.partition("=")[0] for change in made)}
    changed_config(run, made)
    kept = [each for each in kept_settings(run, given) if each.partition(" = ")[0] not in changed]
    return RunChoice(given, folder, True, made, tuple(f"the run keeps its own {each}" for each in kept))


def _choose_folder(run: Path, changes: Sequence[str], folder: Path | None, resume: bool) -> RunChoice:
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
    return RunChoice(load_config(str(stored), plugins=False), run, True, tuple(changes))  # a plugin may have moved


def newest_run(config: Config, name: str, root: Path = Path("runs")) -> Path:
    """Return the most recently written run folder below `root` with exactly this configuration.

    Raises:
        InputError: there is no such run.
    """
    stored = [path for path in root.glob("*/config.yaml") if _fingerprint(path) == config.fingerprint()]
    if not stored:
        raise InputError(
            f"there is no run of '{name}' with these settings below {root}/",
            "--resume continues a run that was begun with the same settings",
            f"Name its folder (grouprl train {root}/NAME --resume), or start it without --resume",
        )
    return max(stored, key=_written).parent


def _written(stored: Path) -> float:
    """Return when a run was last written: the time of its metrics, or of its configuration if there are none."""
    metrics = stored.parent / "metrics.jsonl"
    return (metrics if metrics.exists() else stored).stat().st_mtime


def _fingerprint(stored: Path) -> str | None:
    """Return the fingerprint of a stored configuration; None if this version cannot read it."""
    try:
        return load_config(str(stored), plugins=False).fingerprint()
    except InputError:
        return None


def placed_config(chosen: RunChoice) -> Config | None:
    """Return the changed configuration of a run whose learners this process only starts and watches.

    None means that this process itself trains, alone or as one of several.
    """
    config = chosen.config
    if launched():
        return None
    if chosen.resume and chosen.changes and chosen.folder is not None:
        config = changed_config(RunFolder(chosen.folder), chosen.changes)
    least = 2 if config.cluster.ray == "off" else 1
    return config if config.cluster.learners >= least else None


def stated_facts(
    source: str | Path | Mapping[str, object] | Config,
    changes: Sequence[str],
    folder: str | Path | None,
    resume: bool,
) -> Facts:
    """Return the facts of the start of a rank, as `grouprl.train` or the command line was told to start it.

    Those of a configuration that this machine does not have are left out.

    Raises:
        InputError: the configuration breaks a rule.
    """
    from grouprl.training.session import versions

    given = {"--resume": str(resume), "--folder": "not given" if folder is None else Path(folder).name}
    if isinstance(source, (str, Path)):
        given["SOURCE"] = Path(source).name
    config = _stated_config(source, changes)
    settings = {} if config is None else settings_facts(config)
    return {"given": given, **settings, **version_facts(versions())}


def _stated_config(source: str | Path | Mapping[str, object] | Config, changes: Sequence[str]) -> Config | None:
    if not isinstance(source, (str, Path)):
        return source if isinstance(source, Config) else parse_config(source, plugins=False)
    stored = Path(source) / "config.yaml"
    name = str(stored if stored.is_file() else source)
    return load_config(name, changes, plugins=False) if is_file(Path(name)) or name in recipe_names() else None


def follow_leader(stated: Callable[[], Facts]) -> None:
    """Work as a rank other than 0; signals are ignored once it has met rank 0, which handles them and ends the run in
    order, and end this process before. `stated` returns the facts of its start.

    Raises:
        InputError: these facts cannot be told, and rank 0 has none to compare them with.
    """
    from grouprl.policy.sharded.ranks import follow

    facts: Facts = {}
    within, refused = None, None
    try:
        facts = stated()
    except InputError as error:  # rank 0 has most likely met it, too, and does not come
        facts, within, refused = {"given": {"the configuration": f"refused ({error})"}}, REFUSED, error
    with ExitStack() as stack:
        met: Callable[[], None] = lambda: None  # noqa: E731
        if threading.current_thread() is threading.main_thread():
            for number in INTERRUPTIONS:
                stack.callback(signal.signal, number, signal.signal(number, signal.SIG_DFL))
            met = _ignore_interruptions
        try:
            follow(met, facts, within)
        except RunError:
            if refused is not None:
                raise refused from None
            raise


REFUSED = 15.0
"""Seconds for which a rank that cannot read its configuration waits for a rank 0 that could."""
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)


def _ignore_interruptions() -> None:
    for number in INTERRUPTIONS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def leading_ranks(stated: Callable[[], Facts]) -> Iterator[None]:
    """Lead the other processes that a launcher has started for this run, if there are any. `stated` returns the facts
    of this one's start.
    """
    if ranks_requested() == 1:
        yield
        return
    from grouprl.policy.sharded.ranks import leading

    with leading(stated()):
        yield
