"""Does finer credit help over plain GRPO on tasks of many turns?

Methods that credit single turns run against GRPO, which gives every token of an episode the same advantage: same seeds,
same warmed-up model, same number of episodes, same learning rate. docs/credit.md says whether each method learnt, and
by how much it differs from its rivals, with 95 % intervals over seeds, also where finer credit does not help. Finished
runs are kept in the output folder and not repeated.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import credit_report
from claims import PASS, Claim, Setup
from credit_arenas import ARENAS, CONTESTS, Contest
from effects import PooledStore, arm_of, design_of, measured, teller
from effects_report import Measures, Row, key_of, outcome_of, sentence
from grouprl.core.errors import GrouprlError
from grouprl.experiments.compare import run_comparison
from grouprl.experiments.design import Arm, Comparison
from grouprl.experiments.schedule import Store, Tell


def arms_of(contest: Contest) -> list[Arm]:
    """Return the arms of a contest: its method, then its rivals."""
    arena = ARENAS[contest.arena]
    return [arm_of(arena, contest.method, contest.changes), *(arm_of(arena, rival) for rival in contest.rivals)]


def contest_design(contest: Contest, seeds: int) -> Comparison:
    """Return the comparison of a contest, at the arena's rate."""
    return design_of(contest.arena, ARENAS[contest.arena], arms_of(contest), seeds)


def seen(contest: Contest, seeds: int, store: Store, tell: Tell) -> list[Measures]:
    """Return what the runs of each arm of a contest measured; of a contest of which a run failed, why."""
    try:
        found = measured(run_comparison(contest_design(contest, seeds), store, tell, lambda _: None), store)
    except GrouprlError as error:
        return [str(error)] * (1 + len(contest.rivals))
    return [found[arm.label] for arm in arms_of(contest)]


def compared(contest: Contest, found: Sequence[Measures]) -> Iterator[Row]:
    """Yield a comparison for every measure and rival."""
    for rival, theirs in zip(contest.rivals, found[1:], strict=True):
        for measure, sign in contest.measures.items():
            claim = Claim(contest.method, contest.arena, measure, sign, contest.words, rival)
            yield outcome_of(claim, found[0], theirs)


def learnt(contest: Contest, found: Sequence[Measures]) -> Iterator[Row]:
    """Yield for each arm of a contest whether its held-out prompts went better after training than before."""
    setups: tuple[Setup, ...] = (contest.method, *contest.rivals)
    for setup, measures in zip(setups, found, strict=True):
        yield outcome_of(Claim(setup, contest.arena, PASS, 1, "learns", ""), measures, measures)


def once(rows: Sequence[Row]) -> list[Row]:
    """Return one row for each arm of an arena, which may be in several contests; one that did not fail, if there is."""
    found: dict[str, Row] = {}
    for row in rows:
        if key_of(row) not in found or found[key_of(row)]["verdict"] == "failed":
            found[key_of(row)] = row
    return list(found.values())


def turns_of(contests: Sequence[Contest], found: Sequence[Sequence[Measures]]) -> dict[str, float]:
    """Return for each arena the turns of GRPO's episodes in its last ten steps; 1 where there is but one."""
    taken = {
        contest.arena: [measures.get("train/turns_mean", 1.0) for measures in sides[1 + contest.rivals.index("grpo")]]
        for contest, sides in zip(contests, found, strict=True)
        if not isinstance(sides[0], str)
    }
    return {arena: statistics.fmean(taken.get(arena, [1.0])) for arena in ARENAS}


def main(
    out: Annotated[Path, typer.Option(help="Where runs are kept; finished ones are not repeated.")] = Path(
        "runs/credit"
    ),
    docs: Annotated[Path, typer.Option(help="Where credit.md and credit.json are written.")] = Path("docs"),
    seeds: Annotated[int, typer.Option(help="Seeds per method.")] = 5,
    jobs: Annotated[int, typer.Option(help="Runs at a time, one thread each.")] = 2,
    only: Annotated[str, typer.Option(help="Only contests whose arena and method contain this; docs stay.")] = "",
) -> None:
    """Run every comparison and write the record."""
    contests = [each for each in CONTESTS if only in f"{each.arena} {each.name}"]
    store, tell = PooledStore(out, jobs), teller(Console())
    found = [seen(each, seeds, store, tell) for each in contests]
    pairs = list(zip(contests, found, strict=True))
    rows = [row for pair in pairs for row in compared(*pair)]
    gains = once([row for pair in pairs for row in learnt(*pair)])
    if only:
        for row in (*gains, *rows):
            print(sentence(row))
    else:
        credit_report.write(rows, gains, turns_of(contests, found), docs)


if __name__ == "__main__":
    typer.run(main)
