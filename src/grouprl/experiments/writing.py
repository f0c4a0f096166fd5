"""A comparison on disk: a page, Markdown for a README or a paper, JSON and CSV for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from grouprl.experiments.page import html
from grouprl.experiments.result import ComparisonResult
from grouprl.experiments.tables import ResultTable, facts, listings
from grouprl.storage.run_folder import write_json, write_text

PAGE, MARKDOWN, DATA = "index.html", "comparison.md", "comparison.json"


def write_result(result: ComparisonResult, folder: Path, command: str) -> list[Path]:
    """Write the page, the tables and the data of a comparison into a folder, and return the paths.

    `command` is how it was made.
    """
    texts = {
        PAGE: html(result, command),
        MARKDOWN: markdown(result, command),
        "runs.csv": runs_csv(result),
        "curves.csv": curves_csv(result),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    write_json(folder / DATA, {"command": command, **result.as_json()})
    return [folder / name for name in (*texts, DATA)]


def markdown(result: ComparisonResult, command: str) -> str:
    """Return the comparison in Markdown."""
    notes = "\n".join(f"- {note}" for note in result.notes)
    tables = [part for each in listings(result) for part in (f"## {each.title}", each.about, _table(each)) if part]
    return (
        "\n\n".join(
            ["# Comparison", result.verdict(), facts(result), *[notes] * bool(notes), *tables, f"```\n{command}\n```"]
        )
        + "\n"
    )


def _table(table: ResultTable) -> str:
    lines = [table.head, ["---"] * len(table.head), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def runs_csv(result: ComparisonResult) -> str:
    """Return one line per run that is compared."""
    costs = list(result.runs[0].costs)
    rows = [
        (run.source, run.arm, run.seed, run.final, run.area, *(run.costs[name] for name in costs), run.folder)
        for run in result.runs
    ]
    return _csv(("task", "arm", "seed", "final", "area", *costs, "folder"), rows)


def curves_csv(result: ComparisonResult) -> str:
    """Return one line per task, arm and place of the budget."""
    rows = [
        (curve.source, curve.arm, *point)
        for curve in result.curves
        for point in zip(curve.x, curve.y, curve.low, curve.high, strict=True)
    ]
    return _csv(("task", "arm", result.unit, "iqm", "low", "high"), rows)


def _csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([head, *rows])
    return out.getvalue()
