"""The record of the effects: a verdict per claim, a table per arena, and the numbers."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from claims import Claim
from grouprl.storage.run_folder import write_text

STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Two-sided 95 % quantile of Student's t for so many seeds."""
MARGIN = 0.05
"""How much worse `no worse` may be: pass@1 points."""
SIGNS = {1: "higher", -1: "lower", 0: "no worse"}
VERDICTS = {
    "shown": "the interval of the difference lies on the side claimed",
    "leaning": "the mean lies on the side claimed, the interval holds zero",
    "not shown": "the mean does not lie on the side claimed, the interval holds zero",
    "opposite": "the interval lies on the other side",
    "failed": "a run was refused or stopped",
}
Measures = Mapping[str, float] | str


def outcome_of(claim: Claim, ours: Sequence[Measures], theirs: Sequence[Measures]) -> dict[str, Any]:
    """Compare a method with its rival (or with itself before training), seed by seed."""
    row = {"method": claim.name, "setup": claim.method, "rival": claim.rival, "arena": claim.arena}
    row |= {"measure": claim.measure, "claim": SIGNS[claim.sign], "words": claim.words}
    broken = [m for m in (*ours, *theirs) if isinstance(m, str)]
    if broken:
        return row | {"verdict": "failed", "why": broken[0]}
    a = [_value(m, claim.measure) for m in ours]
    b = [_value(m, claim.measure if claim.rival else claim.measure.replace("eval/", "before/")) for m in theirs]
    low, middle, high = interval([x - y for x, y in zip(a, b, strict=True)])
    numbers = {"ours": a, "theirs": b, "difference": middle, "low": low, "high": high}
    return row | numbers | {"verdict": verdict(claim.sign, low, middle, high)}


def _value(measures: Measures, name: str) -> float:
    assert not isinstance(measures, str)
    return float(measures.get(name, 0.0))


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """95 % interval of the mean difference: low, mean, high."""
    middle, n = statistics.fmean(differences), len(differences)
    if n < 2:
        return -math.inf, middle, math.inf
    half = STUDENT[n] * statistics.stdev(differences) / math.sqrt(n)
    return middle - half, middle, middle + half


def verdict(sign: int, low: float, middle: float, high: float) -> str:
    """Say whether a claim is shown; `sign` 0 claims that the method is no worse than by MARGIN."""
    if sign == 0:
        sign, low, middle, high = 1, low + MARGIN, middle + MARGIN, high + MARGIN
    if sign < 0:
        low, middle, high = -high, -middle, -low
    if low > 0:
        return "shown"
    if high < 0:
        return "opposite"
    return "leaning" if middle > 0 else "not shown"


def line(name: str, measures: Measures) -> str:
    """One finished run for the terminal."""
    if isinstance(measures, str):
        return f"{name}: {measures}"
    return f"{name}: pass@1 {measures['eval/pass@1']:.3f}, {measures['seconds']:.0f} s"


def sentence(row: Mapping[str, Any]) -> str:
    """One claim with its outcome, for the terminal."""
    if row["verdict"] == "failed":
        return f"{row['method']}: failed: {row['why']}"
    return (
        f"{row['method']} ({row['arena']}): {row['measure']} {row['claim']} than {row['rival'] or 'before'}: "
        f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}] {row['verdict']}"
    )


def write(rows: Sequence[Mapping[str, Any]], arenas: Mapping[str, str], docs: Path) -> None:
    """Write effects.md and effects.json."""
    docs.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(_plain(row), ensure_ascii=False, allow_nan=False) for row in rows)
    write_text(docs / "effects.json", f"[\n{lines}\n]\n")
    write_text(docs / "effects.md", page(rows, arenas))


def page(rows: Sequence[Mapping[str, Any]], arenas: Mapping[str, str]) -> str:
    """The text of docs/effects.md."""
    seeds = max((len(row.get("ours", ())) for row in rows), default=0)
    counts = {name: sum(row["verdict"] == name for row in rows) for name in VERDICTS}
    summary = "\n".join(f"- **{name}** ({counts[name]}): {words}" for name, words in VERDICTS.items() if counts[name])
    sections = [
        f"## {arena}\n\n{words[0].upper()}{words[1:]}.\n\n{table([row for row in rows if row['arena'] == arena])}"
        for arena, words in arenas.items()
        if any(row["arena"] == arena for row in rows)
    ]
    return PAGE.format(count=len(rows), seeds=seeds, summary=summary, sections="\n\n".join(sections), margin=MARGIN)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of claims with their outcomes."""
    head = "| method | what its paper claims, seen here as | method | rival | difference | verdict |"
    body = [f"| {' | '.join(_cells(row))} |" for row in sorted(rows, key=lambda row: row["method"])]
    return "\n".join([head, "| --- | --- | --- | --- | --- | --- |", *body])


def _cells(row: Mapping[str, Any]) -> list[str]:
    rival = setup_words(row["rival"]) if row["rival"] else "itself before"
    what = f"{row['words']}: `{row['measure']}` {row['claim']} than {rival}"
    if row["verdict"] == "failed":
        return [setup_words(row["setup"]), what, "", "", "", f"failed: {row['why'].splitlines()[0]}"]
    ours, theirs = (f"{statistics.fmean(row[side]):.3f}" for side in ("ours", "theirs"))
    difference = f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
    return [setup_words(row["setup"]), what, ours, theirs, difference, row["verdict"]]


def setup_words(setup: str | Mapping[str, Any]) -> str:
    """Return a method with its settings as Markdown code."""
    if isinstance(setup, str):
        return f"`{setup}`"
    changes = ", ".join(f"{key}={value}" for key, value in setup.items() if key != "name")
    return f"`{setup['name']}({changes})`"


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: [round(x, 5) for x in v] if k in ("ours", "theirs") else v for k, v in row.items()}


PAGE = """# Does each method do what its paper says?

Recorded by `make zoo` (`scripts/effects.py`, `scripts/claims.py`): {count} claims, {seeds} seeds each, all runs of an
arena from one warmed-up tiny model, one core each. Method and rival differ in nothing but the method. Intervals are
95 % of the mean paired difference over seeds (Student). "No worse" allows {margin} of pass@1.

A toy of 70,000 parameters can show that an idea acts as described; it cannot show that it pays at scale, and where it
shows nothing, the idea may still be right where it was meant to be.

{summary}

Measures: `eval/…` on held-out prompts after training, `train/…` the mean of the last ten steps, `whole/…` of all
steps (or the sum, for tokens), `distinct_right` the different correct completions per group of 16 in the last step,
`length_right` the tokens of correct completions there.

{sections}
"""
