"""Does finer credit help over plain GRPO on tasks of many turns?

Methods that credit single turns run against GRPO, which gives every token of an episode the same advantage: same seeds,
same warmed-up model, same number of episodes, each at its own best learning rate of a small sweep on a seed apart.
docs/credit.md says whether each method learnt, and by how much it differs from its rivals, with 95 % intervals over
seeds, also where finer credit does not help. Finished runs are kept in the output folder and not repeated.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import credit_report
from claims import PASS, Claim, Setup
from credit_arenas import ARENAS, CONTESTS, Contest
from effects import PooledStore, arm_of, design_of, measured, teller
from effects_report import Measures, Row, outcome_of, rates, sentence
from grouprl.core.errors import GrouprlError
from grouprl.experiments.compare import run_comparison
from grouprl.experiments.design import Arm, Comparison
from grouprl.experiments.schedule import Store, Tell
from grouprl.experiments.tuning import Tuned


@dataclass(frozen=True)
class Side:
    """What the runs of an arm measured, or why they could not, and how its rate was chosen."""

    measures: Measures
    tuned: tuple[Tuned, ...] = ()

    @property
    def turns(self) -> float:
        """The turns of its episodes in the last ten steps; 1 where there is but one."""
        if isinstance(self.measures, str):
            return 1.0
        return statistics.fmean(each.get("train/turns_mean", 1.0) for each in self.measures)


def arms_of(contest: Contest) -> list[Arm]:
    """Return the arms of a contest: its method, then its rivals."""
    arena = ARENAS[contest.arena]
    return [arm_of(arena, contest.method, contest.changes), *(arm_of(arena, rival) for rival in contest.rivals)]


def contest_design(contest: Contest, seeds: int) -> Comparison:
    """Return the comparison of a contest."""
    return design_of(contest.arena, ARENAS[contest.arena], arms_of(contest), seeds)


def seen(contest: Contest, seeds: int, store: Store, tell: Tell) -> list[Side]:
    """Return what came of each arm of a contest; of a contest of which a run failed, why."""
    arms = arms_of(contest)
    try:
        result = run_comparison(contest_design(contest, seeds), store, tell, lambda _: None)
    except GrouprlError as error:
        return [Side(str(error))] * len(arms)
    found = measured(result, store)
    return [Side(found[arm.label], tuple(each for each in result.tuned if each.arm == arm.label)) for arm in arms]


def compared(contest: Contest, found: Sequence[Side]) -> Iterator[Row]:
    """Yield a comparison for every measure and rival, with the rates of both."""
    for rival, theirs in zip(contest.rivals, found[1:], strict=True):
        for measure, sign in contest.measures.items():
            claim = Claim(contest.method, contest.arena, measure, sign, contest.words, rival)
            row = outcome_of(claim, found[0].measures, theirs.measures)
            yield row | {"tuned": rates([*found[0].tuned, *theirs.tuned])}


def learnt(contest: Contest, found: Sequence[Side]) -> Iterator[Row]:
    """Yield for each arm of a contest whether its held-out prompts went better after training than before."""
    setups: tuple[Setup, ...] = (contest.method, *contest.rivals)
    for setup, side in zip(setups, found, strict=True):
        row = outcome_of(Claim(setup, contest.arena, PASS, 1, "learns", ""), side.measures, side.measures)
        yield row | {"tuned": rates(side.tuned), "turns": round(side.turns, 1)}


def main(
    out: Annotated[Path, typer.Option(help="Where runs are kept; finished ones are not repeated.")] = Path(
        "runs/credit"
    ),
    docs: Annotated[Path, typer.Option(help="Where credit.md and credit.json are written.")] = Path("docs"),
    seeds: Annotated[int, typer.Option(help="Seeds per method.")] = 5,
    jobs: Annotated[int, typer.Option(help="Runs at a time, one thread each.")] = 2,
    only: Annotated[str, typer.Option(help="Only contests whose arena and method contain this.")] = "",
    missing: Annotated[bool, typer.Option(help="Only contests not compared at own rates.")] = False,
) -> None:
    """Run comparisons, and write each into the record as it comes; other rows stay as they are."""
    rows = credit_report.read(docs)
    known = credit_report.at_own_rates(rows)
    named = [each for each in CONTESTS if only in f"{each.arena} {each.name}"]
    store, tell = PooledStore(out, jobs), teller(Console())
    for contest in named if not missing else [each for each in named if credit_report.contest_key(each) not in known]:
        found = seen(contest, seeds, store, tell)
        new = [*learnt(contest, found), *compared(contest, found)]
        for row in new:
            print(sentence(row))
        rows = credit_report.joined(rows, new)
        credit_report.write(rows, docs)


if __name__ == "__main__":
    typer.run(main)
