"""A comparison as it is asked for: by `grouprl.compare`, and by the command line through the same function."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from rich.console import Console

from grouprl.algorithms.method import Method
from grouprl.config.python_objects import without_object
from grouprl.config.run import Config
from grouprl.core.errors import InputError, shortened
from grouprl.core.terminal import Terminal
from grouprl.experiments.arms import Choice, Values, arms_of, methods_of
from grouprl.experiments.budget import Budget, budget_of
from grouprl.experiments.compare import run_comparison, source_of
from grouprl.experiments.design import Comparison, Trial
from grouprl.experiments.page import html
from grouprl.experiments.preview import preview
from grouprl.experiments.result import ComparisonResult, measure_of
from grouprl.experiments.run_outcome import RunOutcome
from grouprl.experiments.schedule import Store, Tell, TrialPlace, local_process
from grouprl.experiments.terms import refuse_overridden
from grouprl.experiments.writing import write_result
from grouprl.methods.compose import Resolved
from grouprl.processes.usage import core_count
from grouprl.view.report import framed


class ShownResult(ComparisonResult):
    """The result of a comparison, which a notebook shows as its page."""

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own."""
        return framed(html(self, "grouprl.compare(…)"))


SourceLike = str | Path | Mapping[str, object] | Config
Sweeps = Mapping[str, Sequence[object]]
FOLDER = Path("runs/compare")
"""The folder of runs if no other is given."""


def designed(
    sources: SourceLike | Sequence[SourceLike],
    methods: str | Sequence[Choice] = (),
    *,
    over: Mapping[str, Values] | None = None,
    changes: Sequence[str] = (),
    seeds: int = 5,
    budget: str | Budget = "tokens",
    tune: Mapping[str, Values] | Literal[False] | None = None,
    tune_seeds: int = 2,
    against: str | None = None,
    measure: str | None = None,
    lower_is_better: bool = False,
) -> Comparison:
    """Return the design of a comparison; see `compare` for what the arguments mean.

    Raises:
        InputError: a source does not exist, methods or sweeps cannot be read, or there is nothing to compare.
    """
    several = [sources] if isinstance(sources, str | Path | Mapping | Config) else list(sources)
    refuse_overridden(changes)
    found = tuple(source_of(each, changes) for each in several)
    names = [source.name for source in found]
    if len(set(names)) < len(names):
        raise InputError(
            f"the sources {', '.join(names)}", "each must have a name of its own", "Name each once, or rename a file"
        )
    named = (
        methods_of(methods)
        if isinstance(methods, str) and methods
        else []
        if isinstance(methods, str)
        else list(methods)
    )
    arms = tuple(arms_of(named, over or {}))
    swept = {} if tune is False else tune or None
    counted = budget if isinstance(budget, Budget) else budget_of(budget)
    return Comparison(found, arms, seeds, counted, swept, tune_seeds, measure, against, lower_is_better)


def compare(
    sources: SourceLike | Sequence[SourceLike],
    methods: str | Sequence[Choice | Callable[[], Method] | Method | Resolved] = (),
    *,
    over: Sweeps | None = None,
    changes: Sequence[str] = (),
    seeds: int = 5,
    budget: str = "tokens",
    tune: Sweeps | Literal[False] | None = None,
    tune_seeds: int = 2,
    against: str | None = None,
    measure: str | None = None,
    lower_is_better: bool = False,
    folder: str | Path = FOLDER,
    workers: int | None = None,
    ray: str | None = None,
    console: Console | None = None,
) -> ShownResult:
    """Compare methods or settings fairly, as `grouprl compare` does, and return the result.

    Args:
        sources: what is trained on: recipes, files, names of tasks, or configurations.
        methods: names, mappings of a base and changes, `file.py:function`, or that function or a method itself; none:
            each source's own.
        over: settings to sweep with their values; every combination is an arm of each method.
        changes: settings `key=value` of every run.
        seeds: paired seeds of each arm.
        budget: `tokens` (sampled), `trained` (tokens), `steps` or `seconds`, with an amount: `tokens=400000`.
        tune: settings with values that are tried for each arm on other seeds; None: the learning rate; False: nothing.
        tune_seeds: seeds of each value tried.
        against: the label of the arm that the others are compared with; None: the first.
        measure: the metric of evaluations that is compared.
        lower_is_better: less of the measure is better, as of a length or an error.
        folder: where runs and results are kept; finished runs are not repeated.
        workers: runs at a time; None: one per core.
        ray: the address of a Ray cluster, or "auto": runs are made on its machines, which share the folder.
        console: where progress is shown; by default the terminal.

    Raises:
        InputError: something cannot be compared; no run has begun then.
        RunError: a run failed; others are kept, and the same call continues.
        MissingExtra: `ray` is given and Ray is not installed.
    """
    _numbers_fit(seeds=seeds, tune_seeds=tune_seeds, workers=workers)
    _sequence("changes", changes)
    if not isinstance(methods, str):
        _sequence("methods", methods)
    design = designed(
        sources,
        methods if isinstance(methods, str) else [_setup(each) for each in methods],
        over={} if over is None else _written("over", over),
        changes=changes,
        seeds=seeds,
        budget=budget,
        tune=None if tune is None else tune is not False and (_written("tune", tune) or False),
        tune_seeds=tune_seeds,
        against=against,
        measure=measure,
        lower_is_better=lower_is_better,
    )
    with place_of(ray) as place:
        store = Store(Path(folder), workers or place.room, place.start)
        return ShownResult(**vars(compared(design, store, console or Terminal(), "grouprl.compare(…)")))


@contextmanager
def place_of(ray: str | None) -> Iterator[TrialPlace]:
    """Yield this machine with a run on each core, or the Ray cluster at an address.

    Raises:
        MissingExtra: Ray is not installed.
        InputError: the cluster cannot be reached, or has no processor.
    """
    if ray is None:
        yield TrialPlace(local_process, core_count())
        return
    from grouprl.experiments.on_ray import on_ray

    with on_ray(ray) as cluster:
        yield cluster


def compared(design: Comparison, store: Store, console: Console, command: str) -> ComparisonResult:
    """Say what a comparison will do, do it, write its files, and return its result."""
    seen = preview(design, store)
    for line in seen.lines:
        console.print(line, markup=False, highlight=False)
    store.folder.mkdir(parents=True, exist_ok=True)
    result = run_comparison(
        design, store, _teller(seen.runs, console, design.measure), lambda text: console.print(f"[bold]{text}[/]")
    )
    write_result(result, store.folder, command)
    return result


def _setup(method: Choice | Callable[[], Method] | Method | Resolved) -> Choice:
    """Return a method as the name or the mapping that a configuration has of it.

    Raises:
        InputError: a configuration cannot express it.
    """
    found = without_object("method", method)
    if not isinstance(found, str | Mapping):
        rule = "each is a name, a mapping of a base and changes, a method or the function that makes one"
        raise InputError(f"methods has {shortened(method)}", rule)
    return found


def _written(argument: str, sweeps: Sweeps) -> dict[str, Values]:
    """Return the values of `over` or `tune` as they are written on a command line.

    Raises:
        InputError: it is not a mapping of settings to lists of values, a list is empty, or holds a value twice.
    """
    rule = "it is a mapping of settings to lists of different values"
    lists = isinstance(sweeps, Mapping) and all(isinstance(of, list | tuple) and of for of in sweeps.values())
    if not lists:
        raise InputError(f"{argument}={shortened(sweeps)}", rule, f'Write: {argument}={{"optim.lr": [1e-4, 3e-4]}}')
    written = {key: tuple(x if isinstance(x, str) else json.dumps(x) for x in of) for key, of in sweeps.items()}
    if any(len(set(of)) < len(of) for of in written.values()):
        raise InputError(f"{argument}={shortened(sweeps)}", rule, "Leave the repeated value out")
    return written


def _numbers_fit(**given: int | None) -> None:
    """Raise InputError for a number of seeds or workers that is not a whole one, at least 1."""
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InputError(f"{name}={shortened(value)}", "it must be a whole number, at least 1")


def _sequence(argument: str, given: object) -> None:
    """Raise InputError for what is not a list, where one is asked for: a text or a mapping would be taken apart."""
    if not isinstance(given, list | tuple):
        raise InputError(f"{argument}={shortened(given)}", "it must be a list", f"Put it into one: {argument}=[…]")


def _teller(runs: int, console: Console, measure: str | None) -> Tell:
    """Return a function that reports the final value of the compared measure in each run."""
    told = 0

    def tell(trial: Trial, outcome: RunOutcome, known: bool) -> None:
        nonlocal told
        told += 1
        came = f"failed: {outcome.error}" if outcome.error else _came_to(outcome, measure)
        how = "kept" if known else f"{outcome.costs['seconds']:.0f} s of steps"
        console.print(f"[{told}/{runs}] {trial.words}: {came} ({how})", markup=False, highlight=False)

    return tell


def _came_to(outcome: RunOutcome, asked: str | None) -> str:
    """Return the measure that is compared, and its last value in a run that has it."""
    try:
        name = measure_of([outcome], asked)
        return f"{name} {outcome.final(name):.3f}"
    except InputError:  # said when all runs are made, of all of them
        return f"no {asked or 'measure'}"
