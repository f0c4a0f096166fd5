"""Does finer credit help over plain GRPO on tasks of many turns?

Methods that credit single turns run against GRPO, which gives every token of an episode the same advantage: same seeds,
same warmed-up model, same number of episodes. docs/credit.md says whether each method learnt, and by how much it
differs from its rivals, with 95 % intervals over seeds, also where finer credit does not help. Finished runs are kept
in the output folder and not repeated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import credit_report
import effects
from claims import Claim
from credit_arenas import ARENAS, CONTESTS, Contest
from effects import Run, run_all
from effects_report import outcome_of, sentence

Found = Mapping[str, Mapping[str, float] | str]
"""What runs measured, by their names; of one that could not run, why."""


def runs_of(contests: Iterable[Contest], seeds: int) -> list[Run]:
    """Return every run that the contests need, each once, first seeds first: who stops early has fewer of all."""
    wanted = (run for each in contests for runs in (ours(each, seeds), *theirs(each, seeds)) for run in runs)
    return sorted({run.name: run for run in wanted}.values(), key=lambda run: run.seed)


def ours(contest: Contest, seeds: int) -> list[Run]:
    """Return the runs of a contest's method."""
    return [Run(contest.arena, contest.method, seed, contest.changes) for seed in range(seeds)]


def theirs(contest: Contest, seeds: int) -> list[list[Run]]:
    """Return the runs of each of its rivals."""
    return [[Run(contest.arena, rival, seed) for seed in range(seeds)] for rival in contest.rivals]


def finished(runs: Iterable[Run], out: Path) -> dict[str, dict[str, float] | str]:
    """Return what the finished ones among the runs measured."""
    paths = {run.name: out / run.name / "outcome.json" for run in runs}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.is_file()}


def whole_seeds(contest: Contest, found: Found, seeds: int) -> int:
    """Return how many seeds, counted from the first, all runs of a contest have."""
    runs = runs_of([contest], seeds)
    return min((run.seed for run in runs if run.name not in found), default=seeds)


def compared(contest: Contest, found: Found, most: int) -> Iterator[dict[str, Any]]:
    """Yield a comparison for every measure and rival, over as many seeds as there are; none for fewer than two.

    `most` is how many seeds are looked for.
    """
    seeds = whole_seeds(contest, found, most)
    if seeds < 2:
        return
    mine = [found[run.name] for run in ours(contest, seeds)]
    for rival, runs in zip(contest.rivals, theirs(contest, seeds), strict=True):
        for measure, sign in contest.measures.items():
            claim = Claim(contest.method, contest.arena, measure, sign, contest.words, rival)
            yield outcome_of(claim, mine, [found[run.name] for run in runs])


def learnt(runs: Iterable[Run], found: Found) -> list[dict[str, Any]]:
    """Return for each method in each arena whether its held-out prompts went better after training than before."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in (run for run in runs if run.name in found):
        groups.setdefault((run.arena, run.name.rpartition("-s")[0]), []).append(run)
    return [
        outcome_of(Claim(group[0].method, arena, "eval/pass@1", 1, "learns", ""), *[[found[r.name] for r in group]] * 2)
        for (arena, _), group in groups.items()
        if len(group) > 1
    ]


def main(
    out: Annotated[Path, typer.Option(help="Where runs are kept; finished ones are not repeated.")] = Path(
        "runs/credit"
    ),
    docs: Annotated[Path, typer.Option(help="Where credit.md and credit.json are written.")] = Path("docs"),
    seeds: Annotated[int, typer.Option(help="Seeds per method.")] = 3,
    jobs: Annotated[int, typer.Option(help="Runs at a time, one thread each.")] = 2,
    only: Annotated[str, typer.Option(help="Only contests whose arena and method contain this; docs stay.")] = "",
    run: Annotated[
        bool, typer.Option(help="Run what is not finished; else the record is made of what is there.")
    ] = True,
) -> None:
    """Run every comparison and write the record."""
    wanted = [each for each in CONTESTS if only in f"{each.arena} {each.name}"]
    runs = runs_of(wanted, seeds)
    found = run_all(runs, out, jobs, Console()) if run else finished(runs, out)
    rows = [row for each in wanted for row in compared(each, found, seeds)]
    gains = learnt(runs, found)
    if only:
        for row in (*gains, *rows):
            print(sentence(row))
    else:
        credit_report.write(rows, gains, credit_report.turns_taken(runs, found), docs)


effects.ARENAS.update(ARENAS)  # also in the processes that run them, which import this module

if __name__ == "__main__":
    typer.run(main)
