"""Preference methods and their rivals on toys with a known truth: docs/preferences.json, and tables of two pages.

    python scripts/preferences.py run losses      make a study's runs, or what is missing of them (all without a name)
    python scripts/preferences.py page            write the tables

All runs of a study begin at one model. Each arm has a learning rate of its own, tried on seeds apart: the study's rates
first, and where the best lies at an end, further ones beyond it, each a third or thrice, until it does not or `FURTHER`
were tried. It is then run on the paired seeds. Intervals are of 95 % over seeds (Student), of paired differences.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from effects_report import interval
from grouprl.experiments.budget import Budget
from grouprl.experiments.compare import Ground, source_of
from grouprl.experiments.design import TUNING_SEED, Arm, Trial, start_trial, trial
from grouprl.experiments.run_outcome import RunOutcome
from grouprl.experiments.schedule import Store
from grouprl.experiments.significance import holm, paired_p_value
from grouprl.experiments.trial_main import RUN
from grouprl.experiments.tuning import Tuned, best
from grouprl.storage.run_folder import RunFolder, write_json
from learn import Settings, merged
from page_record import fill
from pooled_runs import PooledStore
from preference_studies import STUDIES, Study

DOCS = Path(__file__).parents[1] / "docs"
RECORD = DOCS / "preferences.json"
PAGES = {
    "preferences.md": (
        *("objectives", "losses", "lists", "uneven_labels", "pairs", "sampled", "triples", "offline", "margins"),
        *("annotators", "guided"),
    ),
    "policies.md": ("teacher",),
    "reward_models.md": ("users", "circle", "cycles", "components", "ratings", "steps"),
}
"""The pages, and which of the studies that have been run each shows."""
FURTHER, DIGITS = 3, 4
"""Most rates that are tried beyond the ends of a sweep; digits of a number."""
Row = dict[str, Any]


class Bench:
    """The runs of a study: where they are kept, and the one that all begin at."""

    def __init__(self, study: Study, name: str, store: Store) -> None:
        study.prepare()
        self.study, self.store = study, store
        self.source, self.start = self.begun(name, study.settings)
        models = {label: self.first(f"{name} {label}", given) for label, given in study.first.items()}
        self.arms = {label: Arm(label, changes(named(given, models))) for label, given in study.arms.items()}

    def begun(self, name: str, settings: Settings) -> tuple[Ground, tuple[Trial, Path]]:
        """Return what runs of these settings are made on, and the run that they begin at with its model."""
        source = Ground(name, source_of(settings).settings)
        begin = start_trial(source)
        self.outcomes([begin])
        return source, (begin, self.model_of(begin))

    def first(self, name: str, given: Settings) -> Path:
        """Make a run that others read the model of, by a seed that is none of theirs; return that model's folder."""
        settings = merged(self.study.settings, given)
        source, start = self.begun(name, settings)
        seed = TUNING_SEED + self.study.tuned_on
        made = trial(source, Arm("alone", ()), seed, Budget("steps", settings["steps"]), start)
        (outcome,) = self.outcomes([made])
        print(f"{name}: {self.study.measure} {outcome.final(self.study.measure)}", flush=True)
        return self.model_of(made)

    def model_of(self, made: Trial) -> Path:
        """Return the folder of the model that a run ended with."""
        return (made.folder(self.store.folder) / RUN / "model").absolute()

    def outcomes(self, trials: Sequence[Trial]) -> list[RunOutcome]:
        """Return the outcomes of runs in their order, after making those that are missing."""
        found = self.store.outcomes(trials, lambda made, _outcome, _known: print(made.words, flush=True))
        return [found[each.key] for each in trials]

    def trials(self, label: str, rate: str, seeds: Sequence[int]) -> list[Trial]:
        """Return the runs of an arm at a rate."""
        budget = Budget("steps", self.study.settings["steps"])
        return [trial(self.source, self.arms[label], seed, budget, self.start, (rate,)) for seed in seeds]

    def swept(self, label: str) -> Tuned:
        """Try the study's rates, then further ones beyond an end at which the best one lies."""
        rates, seeds, measure = (
            list(self.study.rates),
            range(TUNING_SEED, TUNING_SEED + self.study.tuned_on),
            self.study.measure,
        )
        while True:
            tried = [((change,), self.trials(label, change, seeds)) for change in map(rate_of, sorted(rates))]
            found = best(label, label, [(change, self.outcomes(runs)) for change, runs in tried], measure)
            if not found.at_ends() or len(rates) == len(self.study.rates) + FURTHER:
                return found
            low = found.chosen == (rate_of(min(rates)),)
            rates.append(min(rates) / 3 if low else max(rates) * 3)

    def row(self, name: str, label: str) -> Row:
        """Tune an arm and run it on the paired seeds; return what the record holds of it."""
        found, measure = self.swept(label), self.study.measure
        trials = self.trials(label, found.chosen[0], range(self.study.seeds))
        finals = [each.final(measure) for each in self.outcomes(trials)]
        return {
            "study": name,
            "arm": label,
            "measure": measure,
            "rate": number_of(found.chosen[0]),
            "end": bool(found.at_ends()),
            "tried": {
                str(number_of(change[0])): mean(scores)
                for change, scores in zip(found.tried, found.scores, strict=True)
            },
            "final": [round(each, DIGITS) for each in finals],
            "gain_low": [round(self.last(each)[f"{measure}_gain_low"], DIGITS) for each in trials],
            "before": round(self.outcomes([self.start[0]])[0].final(measure), DIGITS),
        }

    def last(self, made: Trial) -> Row:
        """Return the last evaluation of a run."""
        records = RunFolder(made.folder(self.store.folder) / RUN).read_metrics()
        return [each for each in records if each["phase"] == "eval"][-1]


def named(given: Settings, models: Mapping[str, Path]) -> Settings:
    """Return an arm's settings with the folder of the first run that its reference names."""
    reference = given.get("model", {}).get("reference")
    return merged(given, {"model": {"reference": str(models[reference])}}) if reference in models else given


def changes(given: Settings, at: str = "") -> tuple[str, ...]:
    """Return nested settings as changes `key=value`; a method stays whole."""
    found: list[str] = []
    for key, value in given.items():
        whole = not isinstance(value, Mapping) or key in ("method", "users")
        found += [f"{at}{key}={json.dumps(value)}"] if whole else changes(value, f"{at}{key}.")
    return tuple(found)


def rate_of(rate: float) -> str:
    """Return a learning rate as a change."""
    return f"optim.lr={rate:.2g}"


def number_of(change: str) -> float:
    """Return the rate of a change."""
    return float(change.partition("=")[2])


def mean(scores: Sequence[float | None]) -> float | None:
    """Return the mean, or None if a run failed."""
    known = [each for each in scores if each is not None]
    return round(float(np.mean(known)), DIGITS) if len(known) == len(scores) else None


def read() -> list[Row]:
    """Return the rows of the record."""
    found: list[Row] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else []
    return found


def kept(row: Row) -> None:
    """Put a row into the record, in place of that of the same arm; rows stand in the order of the studies."""
    rows = {(each["study"], each["arm"]): each for each in [*read(), row]}
    order = [(name, label) for name, study in STUDIES.items() for label in study.arms]
    write_json(RECORD, [rows[key] for key in order if key in rows])


app = typer.Typer()


@app.command()
def run(
    names: Annotated[list[str] | None, typer.Argument(help="Studies; all without a name.")] = None,
    out: Annotated[Path, typer.Option(help="Where runs are kept; finished ones are not repeated.")] = Path(
        "runs/preferences"
    ),
    jobs: Annotated[int, typer.Option(help="Runs at a time, one thread each.")] = 1,
    arm: Annotated[list[str] | None, typer.Option(help="An arm, as often as needed; all without it.")] = None,
) -> None:
    """Make what is missing of the studies' runs, arm by arm, and record each arm."""
    for name in names or list(STUDIES):
        bench = Bench(STUDIES[name], name, PooledStore(out.absolute(), jobs))
        for label in arm or STUDIES[name].arms:
            kept(bench.row(name, label))


def table(rows: Sequence[Row]) -> str:
    """Return a study's arms as a table, the first being the one that the others are compared with."""
    first = rows[0]
    heads = ("method", "rate", f"before: {first['before']:.3f}; after", f"beside {first['arm']}", "p (Holm)")
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    apart = [[a - b for a, b in zip(row["final"], first["final"], strict=True)] for row in rows[1:]]
    p_values = ["", *(f"{p:.2g}" for p in holm([paired_p_value(np.array(each)[:, None]) for each in apart]))]
    differences = ["", *(words(each, "+.3f") for each in apart)]
    found = sorted(zip(rows, differences, p_values, strict=True), key=lambda each: -float(np.mean(each[0]["final"])))
    for row, difference, p in found:
        rate = f"{row['rate']:g}{'*' * row['end']}"
        lines.append(f"| {row['arm']} | {rate} | {words(row['final'], '.3f')} | {difference} | {p} |")
    return "\n".join(lines)


def words(values: Sequence[float], form: str) -> str:
    """Return the mean of seeds with its interval."""
    low, middle, high = interval(values)
    return f"{middle:{form}} [{low:{form}}, {high:{form}}]"


@app.command()
def page() -> None:
    """Write the tables of the studies that are recorded into their pages."""
    for file, names in PAGES.items():
        fill(DOCS / file, {name: table(rows_of(name)) for name in names})


def rows_of(name: str) -> list[Row]:
    """Return the record of a study."""
    return [row for row in read() if row["study"] == name]


if __name__ == "__main__":
    app()
