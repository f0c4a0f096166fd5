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
from dataclasses import dataclass
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

DOCS = Path(__file__).parents[1] / "docs"
RECORD = DOCS / "preferences.json"
PAGES = {
    "preferences.md": ("objectives", "losses", "lists", "uneven_labels"),
    "reward_models.md": ("users", "circle", "cycles", "components", "ratings"),
}
"""The pages, and which of the studies that have been run each shows."""
FURTHER, DIGITS = 3, 4
"""Most rates that are tried beyond the ends of a sweep; digits of a number."""
Row = dict[str, Any]

PAIRS: Settings = {
    "task": {"name": "preferences", "noise": 0.1},
    "model": {"name": "tiny", "tiny": {"hidden": 64, "layers": 2, "heads": 4, "intermediate": 128}},
    "warmup": {"steps": 150, "batch": 32},
    "method": "dpo",
    "steps": 60,
    "batch": {"prompts": 16, "group_size": 2},
    "optim": {"lr": 1e-3},
    "eval": {"every": 0, "final_prompts": 128, "samples": 4},
    "run": {"checkpoint_every": 10**6, "rollouts_every": 0},
}
LOSSES = (
    *("dpo", "cdpo", "f_dpo", "aot", "rdpo", "bmc", "ld_dpo", "h_dpo", "dpo_ties", "sppo", "slic", "exo"),
    *("apo_down", "discopop", "wpo", "alphapo", "ipo", "nca", "mpo", "simpo", "relative_po", "apo_zero", "cpo", "orpo"),
)
USERS: Settings = {
    "task": {"name": "preferences", "annotators": 3, "longest": 1},
    "model": {"name": "tiny", "tiny": {"hidden": 32, "layers": 2, "heads": 4, "intermediate": 64}},
    "method": "bradley_terry",
    "steps": 500,
    "batch": {"prompts": 16, "group_size": 2},
    "eval": {"every": 0, "final_prompts": 256},
    "run": PAIRS["run"],
}
CIRCLES: Settings = {
    "task": {"name": "preferences", "judge": "cyclic", "noise": 0.1},
    "model": USERS["model"],
    "method": "bradley_terry",
    "steps": 300,
    "batch": {"prompts": 16, "group_size": 2},
    "eval": {"every": 0, "final_prompts": 512},
    "run": PAIRS["run"],
}
CIRCLE: Settings = merged(
    CIRCLES,
    {
        "task": {"judge": "alphabet", "noise": 0.0, "longest": 1},
        "steps": 150,
        "eval": {"final_prompts": 256},
    },
)
LISTS: Settings = merged(PAIRS, {"task": {"form": "lists", "words": 4}, "batch": {"prompts": 8, "group_size": 4}})
RATED: Settings = {
    "task": {"name": "preferences", "form": "ratings", "words": 4, "noise": 0.1},
    "model": USERS["model"],
    "method": "bradley_terry",
    "steps": 300,
    "batch": {"prompts": 8, "group_size": 4},
    "eval": {"every": 0, "final_prompts": 512},
    "run": PAIRS["run"],
}
HELPED: Settings = {
    "task": {"name": "words", "longest": 4, "variety": 2},
    "model": {"name": "tiny", "tiny": {"hidden": 32, "layers": 2, "heads": 4, "intermediate": 64}},
    "warmup": {"steps": 60, "batch": 32},
    "method": {"name": "barfi", "primary": "liked"},
    "steps": 120,
    "batch": {"prompts": 16, "group_size": 8},
    "eval": {"every": 0, "final_prompts": 128, "samples": 4},
    "run": PAIRS["run"],
}


@dataclass(frozen=True)
class Study:
    """Arms that are compared with the first one, the truth that they are held against, and how rates are tuned."""

    settings: Settings
    arms: Mapping[str, Settings]
    rates: tuple[float, ...]
    measure: str = "eval/reward"
    tuned_on: int = 1
    """Seeds on which each rate is tried."""
    seeds: int = 5


def told(annotators: int) -> Settings:
    """Return the settings of pairs whose annotators, each with an own taste, are known."""
    return merged(PAIRS, {"task": {"annotators": annotators, "apart": True}, "steps": 120})


HEADS: dict[str, Settings] = {
    "dpo": {"method": "dpo", "model": {"agents": "shared"}},
    "mah_dpo": {"method": "mah_dpo", "model": {"agents": "heads"}},
    "mah_dpo, a model each": {"method": "mah_dpo", "model": {"agents": "separate"}},
}
JUDGED: Settings = {"task": {"context": 4}}
LABELS: Settings = merged(
    PAIRS,
    {
        "task": {"form": "labels", "uneven": 0.9},
        "data": {"prompts": 2048},
        "method": "bco",
        "batch": {"prompts": 32, "group_size": 1},
    },
)
MATCHED: dict[str, Settings] = {
    "bco": {"method": "bco"},
    "bco, encoder": {"method": {"name": "bco", "encoder": "policy"}},
}
LISTED: dict[str, Settings] = {
    **{name: {"method": name} for name in ("dpo", "nca", "exo_rw", "nca_rewards", "infonca")},
    "exo_rw, beta_r 0.1": {"method": {"name": "exo_rw", "beta_r": 0.1}},
    **{f"{name}, α 0.1": {"method": {"name": name, "alpha": 0.1}} for name in ("nca_rewards", "infonca")},
}
"""Losses of lists at their own settings, and with a tenth of the rewards' span as their temperature."""
SCORES: dict[str, Settings] = {
    "bradley_terry": {"method": "bradley_terry"},
    "attribute_regression": {"method": {"name": "attribute_regression", "attributes": ["liked", "brief"]}},
    "reward_regression": {"method": "reward_regression"},
}
STUDIES: dict[str, Study] = {
    "objectives": Study(told(2), HEADS, (3e-4, 1e-3, 3e-3), tuned_on=2),
    "users": Study(
        USERS,
        {
            "bradley_terry": {"method": "bradley_terry"},
            "vpl": merged(JUDGED, {"method": "vpl", "model": {"users": {"latent": 16, "hidden": 64}}}),
        },
        (1e-3, 3e-3, 1e-2),
        "eval/pair_accuracy",
    ),
    "cycles": Study(
        CIRCLES,
        {name: {"method": name} for name in ("bradley_terry", "gpm")},
        (1e-3, 3e-3, 1e-2),
        "eval/pair_accuracy",
        tuned_on=2,
    ),
    "circle": Study(
        CIRCLE,
        {name: {"method": name} for name in ("bradley_terry", "gpm")},
        (3e-4, 1e-3, 3e-3),
        "eval/pair_accuracy",
        tuned_on=2,
    ),
    "components": Study(
        HELPED,
        {
            "plain sum": {"method": {"name": "barfi", "primary": "liked", "rate": 0.0}},
            "barfi": {"method": {"name": "barfi", "primary": "liked"}},
        },
        (3e-4, 1e-3, 3e-3),
        "eval/reward/liked",
    ),
    "lists": Study(LISTS, LISTED, (3e-4, 1e-3, 3e-3), tuned_on=2),
    "uneven_labels": Study(LABELS, MATCHED, (3e-4, 1e-3, 3e-3), tuned_on=2),
    "ratings": Study(RATED, SCORES, (1e-3, 3e-3, 1e-2), "eval/pair_accuracy", tuned_on=2),
    "losses": Study(PAIRS, {name: {"method": name} for name in LOSSES}, (3e-4, 1e-3, 3e-3)),
}


class Bench:
    """The runs of a study: where they are kept, and the one that all begin at."""

    def __init__(self, study: Study, name: str, store: Store) -> None:
        self.study, self.store, self.source = study, store, Ground(name, source_of(study.settings).settings)
        begin = start_trial(self.source)
        self.outcomes([begin])
        self.start = begin, (begin.folder(store.folder) / RUN / "model").absolute()
        self.arms = {label: Arm(label, changes(given)) for label, given in study.arms.items()}

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
