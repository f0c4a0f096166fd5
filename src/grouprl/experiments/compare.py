"""A fair comparison: the same start, prompts and budget for each arm, each at its own best rate, on paired seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from grouprl.config.run import Config, load_config, parse_config, recipe_names
from grouprl.config.yaml_files import is_file
from grouprl.core.errors import InputError, RunError
from grouprl.experiments.budget import Budget, nominal
from grouprl.experiments.design import TUNING_SEED, Arm, Comparison, Ground, Trial, start_trial, trial
from grouprl.experiments.result import ComparisonResult, measure_of, result_of
from grouprl.experiments.run_outcome import RunOutcome
from grouprl.experiments.schedule import Store, Tell
from grouprl.experiments.trial_main import RUN
from grouprl.experiments.tuning import Tuned, best

Say = Callable[[str], None]
Place = tuple[str, str]
"""The names of a source and an arm."""
Sweep = list[tuple[tuple[str, ...], list[Trial]]]


def source_of(given: str | Path | Mapping[str, object] | Config, changes: Sequence[str] = ()) -> Ground:
    """Return what is trained on: a recipe, a file, a task's name, or a configuration (or plain data like YAML's).

    Raises:
        InputError: there is no such thing, or the changes do not fit it.
    """
    if isinstance(given, str | Path):
        name = Path(given).stem
        known = given in recipe_names() or is_file(Path(given)) or str(given).endswith((".yaml", ".yml"))
        config = load_config(str(given), changes) if known else Ground(name, {"task": str(given)}).config(changes)
    else:
        data = given.model_dump(mode="json") if isinstance(given, Config) else dict(given)
        config = Ground("", data).config(changes) if changes else parse_config(data)
        name = config.task_name
    return Ground(name, config.model_dump(mode="json"))


def run_comparison(design: Comparison, store: Store, tell: Tell, say: Say) -> ComparisonResult:
    """Make all runs of a comparison that the store lacks, and return what they show.

    Raises:
        InputError: the settings of a run do not fit, or the runs do not have the measure asked for.
        RunError: a run failed at the rate at which it is compared, or a process was ended from outside.
    """
    say("the start of every run")
    starts = {source.name: start_trial(source) for source in design.sources}
    begun = store.outcomes(list(starts.values()), tell)
    _refuse_failed(list(starts.values()), begun, store)
    measure = _measure(design, starts, begun)
    budgets = {source.name: _budget(design, source, begun[starts[source.name].key]) for source in design.sources}
    models = {name: (each, (store.place(each) / RUN / "model").absolute()) for name, each in starts.items()}
    make = _Trials(design, budgets, models)
    tuned = _tuned(design, make, store, tell, say, measure)
    chosen = {(each.source, each.arm): each.chosen for each in tuned}
    say("the runs that are compared")
    trials = {place: make.compared(*place, chosen.get(place, ())) for place in make.places()}
    # All at once, so that workers go from one arm to the next without waiting for its last run.
    every = [each for row in trials.values() for each in row]
    found = store.outcomes(every, tell)
    _refuse_failed(every, found, store)
    outcomes = {place: [_whole(each, found[each.key], measure) for each in row] for place, row in trials.items()}
    folders = {place: [store.place(each).name for each in row] for place, row in trials.items()}
    amounts = {name: budget.amount or 0.0 for name, budget in budgets.items()}
    return result_of(design, outcomes, folders, measure, amounts, tuned)


class _Trials:
    """The runs of a design once its budgets and starts are known."""

    def __init__(
        self, design: Comparison, budgets: Mapping[str, Budget], starts: Mapping[str, tuple[Trial, Path]]
    ) -> None:
        self.design, self.budgets, self.starts = design, budgets, starts
        self.sources = {source.name: source for source in design.sources}
        self.arms = {arm.label: arm for arm in design.arms}

    def places(self) -> list[Place]:
        """Return every pair of a source and an arm."""
        return [(source, arm) for source in self.sources for arm in self.arms]

    def compared(self, source: str, arm: str, tuned: Sequence[str]) -> list[Trial]:
        """Return the runs of an arm that are compared, at its tuned values."""
        return [self._trial(source, self.arms[arm], seed, tuned) for seed in range(self.design.seeds)]

    def sweep(self, source: str, arm: str) -> Sweep:
        """Return the runs that tune an arm, by combination of values."""
        seeds = range(TUNING_SEED, TUNING_SEED + self.design.tune_seeds)
        grid = self.design.grid(self.sources[source], self.arms[arm])
        return [(tuned, [self._trial(source, self.arms[arm], seed, tuned) for seed in seeds]) for tuned in grid]

    def _trial(self, source: str, arm: Arm, seed: int, tuned: Sequence[str]) -> Trial:
        place = self.sources[source], arm, seed, self.budgets[source], self.starts[source]
        return trial(*place, tuned, self.design.rollouts_every)


def _tuned(design: Comparison, make: _Trials, store: Store, tell: Tell, say: Say, measure: str) -> list[Tuned]:
    """Choose the values of each arm on each source."""
    sweeps = {place: sweep for place in make.places() if (sweep := make.sweep(*place))}
    if sweeps:
        say("the runs that tune, on other seeds")
    trials = [each for sweep in sweeps.values() for _, row in sweep for each in row]
    found = store.outcomes(trials, tell)
    return [
        best(*place, [(values, [found[each.key] for each in row]) for values, row in sweep], measure, design.sign)
        for place, sweep in sweeps.items()
    ]


def _budget(design: Comparison, source: Ground, start: RunOutcome) -> Budget:
    """Return the budget with its amount: of tokens, that of the configured steps at the start's lengths."""
    budget, config = design.budget, source.config()
    if budget.amount is not None:
        return budget
    if budget.unit == "steps":
        return Budget("steps", config.steps)
    completions = config.batch.prompts * config.batch.group_size
    return Budget(budget.unit, nominal(config.steps, completions, start.final("eval/length_mean")))


def _measure(design: Comparison, starts: Mapping[str, Trial], begun: Mapping[str, RunOutcome]) -> str:
    """Return the measure that is compared, which every start has."""
    measures = {measure_of([begun[each.key]], design.measure) for each in starts.values()}
    if len(measures) > 1:
        raise InputError(
            f"the sources are measured by {' and '.join(sorted(measures))}",
            "their scores are put together",
            "Compare on one at a time, or name a measure that all have with --measure",
        )
    return measures.pop()


def _refuse_failed(trials: Sequence[Trial], found: Mapping[str, RunOutcome], store: Store) -> None:
    """Refuse a result without the runs that failed: it would favour their arms. Raises RunError: there are some."""
    failed = [each for each in trials if found[each.key].error]
    if failed:
        told = [f"the run {each.words} failed: {found[each.key].error.rstrip('.')}." for each in failed]
        folders = ", ".join(str(store.place(each)) for each in failed)
        raise RunError(
            "\n".join(told)
            + " A comparison without what failed would favour its arm. Tune over smaller rates (--tune), "
            f"or leave the arm out; all other runs are made and kept. To try again, remove {folders}."
        )


def _whole(made: Trial, outcome: RunOutcome, measure: str) -> RunOutcome:
    """Return the outcome of a run that is compared; it must have its measure, or the comparison would be biased."""
    known_p = np.isfinite(outcome.values(measure))
    if not known_p.all():
        raise RunError(
            f"{measure} of the run {made.words} is not a number in {np.sum(~known_p)} of its {len(known_p)} "
            "evaluations, and cannot be compared. Name another --measure; all runs are kept."
        )
    return outcome
