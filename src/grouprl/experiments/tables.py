"""The tables of a comparison as rows of text, the same on the page, in Markdown and on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from grouprl.experiments.aggregates import Interval
from grouprl.experiments.budget import WORDS, amount_text
from grouprl.experiments.result import LEVEL, ComparisonResult

HEALTH = {"dead_groups": "dead groups", "entropy": "entropy at the end", "length_mean": "length at the end"}
COSTS = {"tokens": "tokens sampled", "trained": WORDS["trained"], "steps": "steps", "seconds": "seconds"}
HOW = (
    "Final and area are interquartile means over seeds and tasks, the area being the mean height of the curve over the "
    "budget; 95 % intervals are percentiles of 5,000 bootstrap draws of seeds within each task (arXiv:2108.13264), of "
    "differences paired by seed. P(better) is how likely a run of the arm is better than one of the other. p is of "
    f"Student's paired t-test, corrected by Holm for all rows; below {LEVEL} it counts as a difference. Intervals of "
    "fewer than ten seeds are too narrow (those of five hold the true value in about 88 of 100 comparisons): believe p "
    "where they disagree. Nothing here "
    "says anything about other warm-ups, other sizes of model or other tasks."
)


@dataclass(frozen=True)
class ResultTable:
    """One table: its title, the names of its columns, and its rows."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    about: str = ""
    keys: int = 1
    """The first columns that say together what a row is."""


def listings(result: ComparisonResult) -> list[ResultTable]:
    """Return the tables of a result; what was tuned only where something was."""
    found = [_arms(result), _differences(result), _tuned(result), _runs(result)]
    return [each for each in found if each.rows]


def facts(result: ComparisonResult) -> str:
    """Return one sentence about the terms of the comparison."""
    budgets = ", ".join(f"{amount_text(amount)} on {source}" for source, amount in result.amounts.items())
    return (
        f"Measured: {result.measure}{result.direction}. Budget of a run: {result.unit} ({budgets}). "
        f"{result.seeds} paired seeds: runs of one seed start from the same weights, and see the same prompts."
    )


def interval(found: Interval, signed: bool = False) -> str:
    """Return an interval as text: 0.412 [0.380, 0.441]."""
    sign = "+" if signed else ""
    return f"{found.value:{sign}.3f} [{found.low:{sign}.3f}, {found.high:{sign}.3f}]"


def p_text(p: float) -> str:
    """Return a p-value as text."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _costs(result: ComparisonResult) -> dict[str, str]:
    """Return the costs that are shown, and their words: tokens trained on only where they are the budget."""
    return {unit: words for unit, words in COSTS.items() if unit != "trained" or words == result.unit}


def _arms(result: ComparisonResult) -> ResultTable:
    shown = _costs(result)
    head = ("arm", "final", "area", "tuned", *shown.values(), *HEALTH.values())
    rows = []
    for arm in sorted(result.arms, key=lambda each: each.final.value, reverse=not result.lower_is_better):
        tuned = ", ".join(dict.fromkeys(arm.tuned.values())) or "–"
        costs = [f"{arm.costs[unit]:,.0f}" for unit in shown]
        health = [f"{arm.health[name]:.3g}" if name in arm.health else "–" for name in HEALTH]
        rows.append((arm.arm, interval(arm.final), interval(arm.area), tuned, *costs, *health))
    return ResultTable("Reached and spent", head, tuple(rows), "Means over seeds and tasks; the best arm stands first.")


def _differences(result: ComparisonResult) -> ResultTable:
    head = ("arm", "score", "mean difference", "difference of IQM", "P(better)", "p", "p (Holm)", "verdict")
    rows = tuple(
        (
            d.arm,
            d.score,
            f"{d.mean:+.3f}",
            interval(d.iqm, signed=True),
            interval(d.improvement),
            p_text(d.p),
            p_text(d.p_holm),
            d.verdict,
        )
        for d in result.differences
    )
    return ResultTable(f"Differences from {result.against}", head, rows, HOW, keys=2)


def _tuned(result: ComparisonResult) -> ResultTable:
    rows = []
    for each in result.tuned:
        for changes, scores in zip(each.tried, each.scores, strict=True):
            known = [score for score in scores if score is not None]
            mean = f"{np.mean(known):.3f}" if len(known) == len(scores) else "failed"
            rows.append((each.source, each.arm, " ".join(changes), mean, "chosen" if changes == each.chosen else ""))
    about = "Mean of the final measure on seeds that the comparison does not have."
    return ResultTable("Tuned", ("task", "arm", "tried", "mean", ""), tuple(rows), about)


def _runs(result: ComparisonResult) -> ResultTable:
    return ResultTable(
        "Every run", ("task", "arm", "seed", "final", "area", _tokens(result)[1], "folder"), tuple(_each(result))
    )


def _tokens(result: ComparisonResult) -> tuple[str, str]:
    """Return the cost in tokens that each run is shown with, and its words."""
    unit = "trained" if "trained" in _costs(result) else "tokens"
    return unit, COSTS[unit]


def _each(result: ComparisonResult) -> Iterator[tuple[str, ...]]:
    for run in result.runs:
        tokens = f"{run.costs[_tokens(result)[0]]:,.0f}"
        yield run.source, run.arm, str(run.seed), f"{run.final:.3f}", f"{run.area:.3f}", tokens, run.folder
