"""Does finer credit help over plain GRPO on tasks of many turns?

Methods that judge single turns run against GRPO, which gives every token of an episode the same advantage: same seeds,
same warmed-up model, same number of episodes. docs/credit.md says by how much they differ, with a 95 % interval over
seeds, also where finer credit does not help. Finished runs are kept in the output folder and not repeated.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import effects
import typer
from claims import Claim, Setup
from effects import Arena, Run, merged, run_all, runs_of, sides
from effects_report import VERDICTS, judge, table
from rich.console import Console

from grouprl.train.files import write_text

SMALL: effects.Settings = {
    "batch": {"prompts": 16, "group": 8, "minibatches": 2},
    "warmup": {"batch": 64, "lr": 3e-3},
    "data": {"questions": None},
    "eval": {"final_questions": 128, "samples": 2, "k": [1]},
}
ARENAS: dict[str, Arena] = {
    "keys": Arena(
        "fetch a key in a grid and reach the door, paid at the door alone: where single moves decide, and the same "
        "cell is reached in many episodes of a group",
        merged(SMALL, {"task": {"name": "keys"}, "warmup": {"steps": 400}, "optim": {"lr": 7e-4}, "steps": 60}),
    ),
    "adventure": Arena(
        "find a thing in a world of rooms that is seen room by room, and bring it home: the longest episodes",
        merged(SMALL, {"task": {"name": "adventure"}, "warmup": {"steps": 300}, "steps": 40}),
    ),
    "guess": Arena(
        "find a hidden number by bisection, paid when it is found: what a guess tells is known at once",
        merged(SMALL, {"task": {"name": "guess", "noise": 0.3}, "warmup": {"steps": 700}, "steps": 60}),
    ),
}
"""Tasks of many turns with one reward at the end, as the recipes of these names warm a model up for them."""
FINER: Mapping[str, Sequence[Setup]] = {
    "keys": ("gigpo", "salt", "empg"),
    "adventure": ("gigpo", "salt"),
    "guess": ("gigpo", "igpo"),
}
"""What is compared with GRPO in each arena."""
MEASURES = {
    "eval/pass@1": "held-out questions after training",
    "whole/pass@1": "episodes of all steps: how fast it was learnt",
}
"""What is compared."""
WORDS = "finer credit learns more than one advantage per episode"


def claims() -> list[Claim]:
    """Return every comparison with GRPO."""
    return [
        Claim(method, arena, measure, 1, WORDS)
        for arena, methods in FINER.items()
        for method in methods
        for measure in MEASURES
    ]


def write(rows: Sequence[Mapping[str, Any]], turns: Mapping[str, tuple[float, float]], docs: Path) -> None:
    """Write credit.md and credit.json."""
    docs.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    write_text(docs / "credit.json", f"[\n{lines}\n]\n")
    write_text(docs / "credit.md", page(rows, turns))


def page(rows: Sequence[Mapping[str, Any]], turns: Mapping[str, tuple[float, float]]) -> str:
    """Return the text of docs/credit.md."""
    sections = []
    for arena, made in ARENAS.items():
        before, first = turns[arena]
        start = f"Before training {before:.3f} of the episodes end well; GRPO's last ones take {first:.1f} turns."
        tables = [
            f"`{measure}`, {words}:\n\n{table([r for r in rows if r['arena'] == arena and r['measure'] == measure])}"
            for measure, words in MEASURES.items()
        ]
        sections.append(f"## {arena}\n\n{made.words[0].upper()}{made.words[1:]}.\n\n{start}\n\n" + "\n\n".join(tables))
    seeds = max((len(row.get("ours", ())) for row in rows), default=0)
    verdicts = "\n".join(f"- **{name}**: {words}" for name, words in VERDICTS.items())
    return PAGE.format(seeds=seeds, verdicts=verdicts, summary=summary(rows), sections="\n\n".join(sections))


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say in words which methods beat GRPO, which did not, and which were worse, by held-out questions."""
    main = [row for row in rows if row["measure"] == "eval/pass@1"]
    parts = []
    for verdict, words in (
        ("shown", "learnt more than GRPO"),
        ("opposite", "learnt less"),
        ("failed", "could not run"),
    ):
        found = [f"`{row['method']}` ({row['arena']})" for row in main if row["verdict"] == verdict]
        parts.append(f"{', '.join(found) if found else 'none'} {words}")
    rest = sum(row["verdict"] in ("leaning", "not shown") for row in main)
    return f"Of {len(main)} comparisons: {'; '.join(parts)}; {rest} differ by less than seeds do."


def starting_points(found: Mapping[str, Any], seeds: int) -> dict[str, tuple[float, float]]:
    """Return for each arena pass@1 before training, and the turns of GRPO's episodes in its last ten steps."""
    points = {}
    for arena in ARENAS:
        runs = [found[Run(arena, "grpo", seed).name] for seed in range(seeds)]
        good = [run for run in runs if not isinstance(run, str)]
        before = statistics.fmean(run["before/pass@1"] for run in good)
        points[arena] = before, statistics.fmean(run["train/turns_mean"] for run in good)
    return points


def main(
    out: Annotated[Path, typer.Option(help="Where runs are kept; finished ones are not repeated.")] = Path(
        "runs/credit"
    ),
    docs: Annotated[Path, typer.Option(help="Where credit.md and credit.json are written.")] = Path("docs"),
    seeds: Annotated[int, typer.Option(help="Seeds per method.")] = 3,
    jobs: Annotated[int, typer.Option(help="Runs at a time, one thread each.")] = 2,
) -> None:
    """Run every comparison and write the record."""
    wanted = claims()
    found = run_all(runs_of(wanted, seeds), out, jobs, Console())
    pairs = [[[found[run.name] for run in side] for side in sides(claim, seeds)] for claim in wanted]
    rows = [judge(claim, *pair) for claim, pair in zip(wanted, pairs, strict=True)]
    write(rows, starting_points(found, seeds), docs)


effects.ARENAS.update(ARENAS)  # also in the processes that run them, which import this module

PAGE = """# Does finer credit help on tasks of many turns?

Recorded by `scripts/credit.py`: {seeds} seeds each, all runs of an arena from one warmed-up tiny model. A method and
GRPO differ in nothing but the method: the same questions, as many episodes, the same optimiser. Intervals are 95 % of
the mean paired difference over seeds (Student).

{summary}

{verdicts}

A toy of 70,000 parameters can show whether an idea acts; that it pays at scale it cannot show.

{sections}
"""

if __name__ == "__main__":
    typer.run(main)
