"""Does a method show the effect that its paper claims, on a toy task where its idea can matter?

Every claim (`claims.py`) names an arena, a measure and a rival. Method and rival are compared as `grouprl compare`
does it: from one warmed-up model, each at its own best learning rate of a small sweep on a seed apart, on the same
seeds. The record says by how much they differ, with a 95 % interval over seeds, and whether that is the effect claimed,
also when it is not. Finished runs are kept in the output folder and not repeated.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import effects_report
from claims import CLAIMS, NOT_RUN, PASS, Claim, Setup
from effects_report import Row, Size, sentence, setup_words
from grouprl.core.errors import GrouprlError
from grouprl.experiments.budget import Budget
from grouprl.experiments.compare import run_comparison, source_of
from grouprl.experiments.design import Arm, Comparison, Ground, Trial
from grouprl.experiments.result import ComparisonResult
from grouprl.experiments.run_outcome import RunOutcome
from grouprl.experiments.schedule import Store, Tell
from grouprl.experiments.trial_main import RUN
from grouprl.methods import methods
from grouprl.methods.compose import compose
from learn import Settings, merged
from pooled_runs import PooledStore

LAST = 10
"""Steps at the end of a run over which measures of training are averaged."""
COMMON: Settings = {
    "batch": {"prompts": 16, "group_size": 16, "minibatches": 2},
    "data": {"prompts": 400},
    "model": {"name": "tiny", "tiny": {"layers": 2}},
    "optim": {"lr": 1e-3, "warmup_steps": 5},
    "eval": {"every": 0, "final_prompts": 256, "samples": 8, "k": [1, 8]},
    "run": {"checkpoint_every": 10**6},
}
LARGER: Settings = {"model": {"tiny": {"layers": 4, "hidden": 128, "intermediate": 352}}}
"""The model of 0.8 million parameters."""
LARGER_RATES = 1 / 3
"""What its rates are multiplied by: a wider model is trained at lower ones."""
TUNE_SEEDS = 1
"""Seeds on which a rate is tried; they are none of those compared."""
STANDARD = "grpo"
"""The other arm of the comparison of a method that has no rival but itself."""


@dataclass(frozen=True)
class Arena:
    """A task and a budget in which one kind of idea can matter."""

    words: str
    settings: Settings
    """The settings of the warm-up and of the runs."""
    asked: tuple[str, ...] = ()
    """Changes `key=value` of the runs, whose prompts differ from those of the warm-up."""
    factors: tuple[float, ...] = (1 / 3, 1, 3)
    """The learning rates that are tried, in multiples of the settings'; none: the settings' own is kept."""
    common: Settings = field(default_factory=lambda: COMMON)
    """Settings that those of the arena are laid over."""

    def whole(self) -> Settings:
        """Return every setting of its runs that is not a default."""
        return merged(self.common, self.settings)


ARENAS: dict[str, Arena] = {
    "plain": Arena(
        "six letters backwards, half right after the warm-up: who learns more from 50 rollouts",
        {"task": {"name": "reverse", "length": 6, "noise": 0.15}, "warmup": {"steps": 400}, "steps": 50},
    ),
    "stale": Arena(
        "six letters backwards with sixteen updates per rollout: the data soon are far off-policy",
        {
            "task": {"name": "reverse", "length": 6, "noise": 0.15},
            "warmup": {"steps": 400},
            "steps": 25,
            "batch": {"minibatches": 4, "epochs": 4},
            "optim": {"lr": 1e-3},
        },
        factors=(1 / 10, 1 / 3, 1),
    ),
    "many completions": Arena(
        "take a number apart, with up to 39 correct completions: entropy and the number of different correct "
        "completions collapse",
        {"task": {"name": "summands", "largest": 40, "noise": 0.4}, "warmup": {"steps": 1500}, "steps": 80},
    ),
    "verbose": Arena(
        "five letters backwards behind up to 12 dots of thinking, which help: correct completions grow longer "
        "than they need",
        {
            "task": {"name": "ponder", "length": 5, "dots": 12, "noise": 0.2, "budgeted": 0.0},
            "warmup": {"steps": 400},
            "steps": 60,
        },
    ),
    "variants": Arena(
        "sort six digits, which may stand in either order: the same prompt in two forms",
        {"task": {"name": "sorting", "length": 6, "noise": 0.3}, "warmup": {"steps": 400}, "steps": 50},
    ),
    "budgets": Arena(
        "four letters backwards behind up to 8 dots, by a model that knows how to keep a budget of dots",
        {
            "task": {"name": "ponder", "length": 4, "dots": 8, "budgeted": 0.5},
            "warmup": {"steps": 600},
            "steps": 50,
        },
        ("task.budgeted=0.0",),
    ),
    "beyond reach": Arena(
        "eight letters backwards by a model that mostly finished what a hint began: without one, groups are all wrong",
        {
            "task": {"name": "reverse", "length": 8, "noise": 0.2, "hinted": 0.994},
            "warmup": {"steps": 260},
            "steps": 60,
            "optim": {"lr": 5e-4},
        },
        ("task.hinted=0.0",),
    ),
    "mixed difficulty": Arena(
        "400 prompts of two to ten letters: many far too easy, some too hard, so many groups are dead",
        {
            "task": {"name": "reverse", "length": 10, "shortest": 2, "noise": 0.2},
            "warmup": {"steps": 400},
            "steps": 80,
            "optim": {"lr": 5e-4},
        },
    ),
}


def larger(arena: Arena) -> Arena:
    """Return an arena whose model has 0.8 million parameters."""
    factors = tuple(LARGER_RATES * factor for factor in arena.factors)
    return replace(arena, common=merged(arena.common, LARGER), factors=factors)


def ground(name: str, arena: Arena) -> Ground:
    """Return an arena as what is compared on; its warm-up has all prompts that there are."""
    settings = merged(arena.whole(), {"data": {"prompts": None}})
    return replace(source_of(settings), name=name)


def arm_of(arena: Arena, setup: Setup, changes: Sequence[str] = ()) -> Arm:
    """Return a method as an arm; one that is right only on-policy makes one update of a batch."""
    once = ("batch.minibatches=1", "batch.epochs=1") if compose(setup).method.on_policy else ()
    prompts = f"data.prompts={json.dumps(arena.whole()['data']['prompts'])}"
    own = (f"method={json.dumps(setup)}", prompts, *arena.asked, *once, *changes)
    return Arm(setup_words(setup).strip("`"), own)


def design_of(name: str, arena: Arena, arms: Sequence[Arm], seeds: int) -> Comparison:
    """Return the comparison of arms in an arena; each has its own rate, the best of the arena's sweep, if it has one.

    Rates are chosen by held-out prompts, also where a claim is about something else.
    """
    source = ground(name, arena)
    config = source.config()
    rates = tuple(f"{config.optim.lr * factor:.2g}" for factor in arena.factors)
    tune = {"optim.lr": rates} if rates else {}
    budget = Budget("steps")
    return Comparison((source,), tuple(arms), seeds, budget, tune, TUNE_SEEDS, PASS, rollouts_every=config.steps)


def measured(result: ComparisonResult, store: Store) -> dict[str, list[dict[str, float]]]:
    """Return what the runs of a comparison show, seed by seed, by arm."""
    found: dict[str, list[dict[str, float]]] = {}
    for run in result.runs:
        found.setdefault(run.arm, []).append(measures(store.folder / run.folder / RUN))
    return found


def compared(claim: Claim, arena: Arena, seeds: int, store: Store, tell: Tell) -> Row:
    """Compare a claim's method with its rival and return what came of it, with the rates of both."""
    try:
        arms = [arm_of(arena, each) for each in (claim.method, claim.rival or STANDARD)]
        result = run_comparison(design_of(claim.arena, arena, arms, seeds), store, tell, lambda _: None)
    except GrouprlError as error:
        return effects_report.outcome_of(claim, str(error), str(error))
    found = measured(result, store)
    ours, theirs = (arms[0], arms[1] if claim.rival else arms[0])
    row = effects_report.outcome_of(claim, found[ours.label], found[theirs.label])
    tuned = [each for each in result.tuned if each.arm in (ours.label, theirs.label)]
    return row | {"tuned": effects_report.rates(tuned)}


def measures(folder: Path) -> dict[str, float]:
    """What a finished run shows: evaluations, and means of the last steps of training."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [r for r in map(json.loads, lines) if r["phase"] == "train"]
    found = {f"train/{n}": mean(r[n] for r in records[-LAST:] if n in r) for n in ("entropy", "turns_mean")}
    whole = {
        f"whole/{n}": mean(r[n] for r in records if n in r) for n in ("groups_zero_variance", "rows_trained", "pass@1")
    }
    before = {name.replace("eval", "before"): x for name, x in summary["before"].items()}
    values = {**before, **summary["after"], **found, **whole, **diversity(folder)}
    return {name: x for name, x in values.items() if isinstance(x, float | int) and math.isfinite(x)}


def diversity(folder: Path) -> dict[str, float]:
    """Different correct completions per group among those sampled in the last step, and the mean length of correct
    completions."""
    import pyarrow.parquet as pq

    files = sorted((folder / "rollouts").glob("*.parquet"))
    rows = pq.read_table(files[-1]).to_pylist()
    right: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        right.setdefault(row["group"], []).extend([row] if row["correct"] else [])
    lengths = [len(row["completion_ids"]) for group in right.values() for row in group]
    return {
        "distinct_right": mean(len({row["completion"] for row in group}) for group in right.values()),
        "length_right": mean(lengths),
    }


def mean(values: Iterable[float]) -> float:
    """The mean; nan of nothing."""
    listed = list(values)
    return statistics.fmean(listed) if listed else math.nan


def teller(console: Console) -> Tell:
    """Return a function that shows each run as it ends."""

    def tell(trial: Trial, outcome: RunOutcome, _: bool) -> None:
        came = outcome.error or f"pass@1 {outcome.final(PASS):.3f}, {outcome.costs['seconds']:.0f} s"
        console.print(f"{trial.words}: {came}", markup=False, soft_wrap=True)

    return tell


def main(
    out: Annotated[Path, typer.Option(help="Where runs are kept; finished ones are not repeated.")] = Path(
        "runs/effects"
    ),
    docs: Annotated[Path, typer.Option(help="Where effects.md and effects.json are.")] = Path("docs"),
    seeds: Annotated[int, typer.Option(help="Seeds per method.")] = 3,
    jobs: Annotated[int, typer.Option(help="Runs at a time, one thread each.")] = 2,
    only: Annotated[str, typer.Option(help="Only claims whose method or arena contains this.")] = "",
    missing: Annotated[
        bool, typer.Option(help="Only claims not compared so at own rates, unshown ones first.")
    ] = False,
    size: Annotated[Size, typer.Option(help="Parameters of the model, in millions.")] = Size.SMALL,
) -> None:
    """Compare what the claims name, and write each into the record as it comes; other rows stay as they are."""
    unnamed = [n for n, e in methods().items() if not e.dialect_of and n not in {*NOT_RUN, *(c.name for c in CLAIMS)}]
    if unnamed:
        print(f"without a claim in scripts/claims.py: {', '.join(unnamed)}")
    rows = effects_report.read(docs)
    arenas = ARENAS if size is Size.SMALL else {name: larger(arena) for name, arena in ARENAS.items()}
    known = {effects_report.key_of(row): row for row in rows}
    named = [claim for claim in CLAIMS if only in f"{claim.name} {claim.arena}"]
    if size is not Size.SMALL:  # it is set against what the smaller model showed
        named = [claim for claim in named if Size.SMALL.record in known.get(effects_report.key(claim), {})]
    if missing:
        named = [claim for claim in named if size.record not in known.get(effects_report.key(claim), {})]
    console, store = Console(), PooledStore(out, jobs)
    for claim in sorted(named, key=lambda claim: list(ARENAS).index(claim.arena)):
        row = compared(claim, arenas[claim.arena], seeds, store, teller(console))
        console.print(sentence(row), markup=False, soft_wrap=True)
        rows = effects_report.joined(rows, row, size)
        effects_report.write(rows, {name: arena.words for name, arena in ARENAS.items()}, docs)


if __name__ == "__main__":
    typer.run(main)
