"""The record of the effects: a verdict per claim, a table per arena, and the numbers."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from claims import Claim
from grouprl.evaluation.pass_at_k import mean_interval
from grouprl.experiments.tuning import Tuned
from grouprl.storage.run_folder import write_text

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
UNSHOWN = ("not shown", "opposite")
"""Verdicts of claims that are not seen."""
Measures = Sequence[Mapping[str, float]] | str
"""What runs measured, seed by seed; or why they could not."""
Row = Mapping[str, Any]


class Size(StrEnum):
    """Millions of parameters of a model; `record` is where a row keeps what was seen of it at own rates."""

    SMALL = "0.07"
    LARGER = "0.8"

    @property
    def record(self) -> str:
        """The name of the entry."""
        return "own_rates" if self is Size.SMALL else "larger"


NAMES = ("method", "setup", "rival", "arena", "measure", "claim", "words")
"""The entries of a row that say what is claimed; the others say what was seen."""


def outcome_of(claim: Claim, ours: Measures, theirs: Measures) -> dict[str, Any]:
    """Compare a method with its rival (or with itself before training), seed by seed."""
    row = {"method": claim.name, "setup": claim.method, "rival": claim.rival, "arena": claim.arena}
    row |= {"measure": claim.measure, "claim": SIGNS[claim.sign], "words": claim.words}
    if isinstance(ours, str) or isinstance(theirs, str):
        return row | {"verdict": "failed", "why": ours if isinstance(ours, str) else theirs}
    names = claim.measure, claim.measure if claim.rival else claim.measure.replace("eval/", "before/")
    a, b = ([each.get(name) for each in side] for side, name in zip((ours, theirs), names, strict=True))
    if None in (*a, *b):
        return row | {"verdict": "failed", "why": f"`{claim.measure}` could not be measured in every run"}
    low, middle, high = (round(x, 5) for x in interval([x - y for x, y in zip(a, b, strict=True)]))
    numbers = {"ours": _short(a), "theirs": _short(b), "difference": middle, "low": low, "high": high}
    return row | numbers | {"verdict": verdict(claim.sign, low, middle, high)}


def _short(values: Sequence[float]) -> list[float]:
    return [round(x, 5) for x in values]


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """95 % interval of the mean difference: low, mean, high."""
    found = mean_interval(np.array(differences))
    return found.low, found.value, found.high


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


def sentence(row: Mapping[str, Any]) -> str:
    """One claim with its outcome, for the terminal."""
    if row["verdict"] == "failed":
        return f"{row['method']}: failed: {row['why']}"
    return (
        f"{row['method']} ({row['arena']}): {row['measure']} {row['claim']} than {row['rival'] or 'before'}: "
        f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}] {row['verdict']}"
    )


def rates(tuned: Sequence[Tuned]) -> list[dict[str, Any]]:
    """Return for each arm the rate that was chosen, whether it is the end of its sweep, and the score of each rate.

    The score of a rate at which a run failed is None.
    """
    return [
        {
            "rate": _rate(each.chosen),
            "end": bool(each.at_ends()),
            "tried": {_rate(values): _mean(scores) for values, scores in zip(each.tried, each.scores, strict=True)},
        }
        for each in tuned
    ]


def _mean(scores: Sequence[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return round(statistics.fmean(known), 5) if len(known) == len(scores) else None


def _rate(changes: Sequence[str]) -> str:
    return changes[0].partition("=")[2]


def read(docs: Path) -> list[Row]:
    """Return the rows of the record; none if there is no record."""
    path = docs / "effects.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def key(claim: Claim) -> str:
    """Return a text that tells a claim from others."""
    return key_of({"setup": claim.method, "arena": claim.arena, "measure": claim.measure})


def key_of(row: Row) -> str:
    """Return the same of a row of the record."""
    return json.dumps([row["setup"], row["arena"], row["measure"]])


def joined(rows: Sequence[Row], seen: Row, size: Size) -> list[Row]:
    """Return the rows of a record with what was seen of a claim at own rates, in place of what it had of that size."""
    named = {name: seen[name] for name in NAMES}
    own = {name: value for name, value in seen.items() if name not in NAMES}
    old = {key_of(row): row for row in rows}
    old[key_of(seen)] = {**old.get(key_of(seen), {}), **named, size.record: own}
    return list(old.values())


def write(rows: Sequence[Row], arenas: Mapping[str, str], docs: Path) -> None:
    """Write effects.md and effects.json."""
    docs.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    write_text(docs / "effects.json", f"[\n{lines}\n]\n")
    write_text(docs / "effects.md", page(rows, arenas))


def newest(row: Row) -> Row:
    """Return what is known of a claim: what was seen at own rates, or else at one rate for all."""
    return row.get("own_rates") or row["one_rate"]


def page(rows: Sequence[Row], arenas: Mapping[str, str]) -> str:
    """Return the text of docs/effects.md."""
    counts = Counter(newest(row)["verdict"] for row in rows)
    summary = "\n".join(f"- **{name}** ({counts[name]}): {words}" for name, words in VERDICTS.items() if counts[name])
    sections = [
        f"## {arena}\n\n{words[0].upper()}{words[1:]}.\n\n{tables([row for row in rows if row['arena'] == arena])}"
        for arena, words in arenas.items()
        if any(row["arena"] == arena for row in rows)
    ]
    own = sum("own_rates" in row for row in rows)
    larger = sum("larger" in row for row in rows)
    numbers = {"count": len(rows), "own": own, "rest": len(rows) - own, "larger": larger, "margin": MARGIN}
    tables_of = {"moved": crossed(rows, *RATES), "sizes": crossed(rows, *SIZES)}
    left = sum("own_rates" not in row and row["one_rate"]["verdict"] in UNSHOWN for row in rows)
    return PAGE.format(**numbers, **tables_of, left=left, summary=summary, sections="\n\n".join(sections))


def crossed(rows: Sequence[Row], before: str, after: str, words: tuple[str, str]) -> str:
    """Return a table of what became of the verdicts of the entry `before` in the entry `after`."""
    both = [row for row in rows if before in row and after in row]
    pairs = Counter((row[before]["verdict"], row[after]["verdict"]) for row in both)
    down = [name for name in VERDICTS if any(pairs[name, each] for each in VERDICTS)]
    across = [name for name in VERDICTS if any(pairs[each, name] for each in VERDICTS)]
    body = [[name, *(str(pairs[name, each]) for each in across)] for name in down]
    return markdown([words[0], *(f"{name} {words[1]}" for name in across)], body)


def tables(rows: Sequence[Row]) -> str:
    """Return the claims of an arena with their outcomes: at own rates, at one rate for all, with the larger model."""
    own = [row for row in rows if "own_rates" in row]
    rest = [{**row, **row["one_rate"]} for row in rows if "own_rates" not in row]
    larger = [row for row in rows if "larger" in row]
    first = f"Each at its own rate:\n\n{own_table(own)}" if own else ""
    second = f"One rate for all:\n\n{table(rest)}" if rest else ""
    third = f"Each at its own rate, 0.8 million parameters:\n\n{larger_table(larger)}" if larger else ""
    return "\n\n".join(filter(None, (first, second, third)))


def own_table(rows: Sequence[Row]) -> str:
    """Return a Markdown table of claims at own rates, with their verdicts at one rate for all."""
    head = [*OWN_HEAD, "at one rate for all"]
    return markdown(head, [_own_cells(row) for row in sorted(rows, key=_method)])


def larger_table(rows: Sequence[Row]) -> str:
    """Return a Markdown table of claims seen with the larger model, with their verdicts with the smaller one."""
    head = [*OWN_HEAD, "0.07 million"]
    cells = [[*own_cells({**row, **row["larger"]}), _before(newest(row))] for row in sorted(rows, key=_method)]
    return markdown(head, cells)


def _method(row: Row) -> str:
    return str(row["method"])


def _own_cells(row: Row) -> list[str]:
    return [*own_cells({**row, **row["own_rates"]}), _before(row.get("one_rate"))]


def own_cells(row: Row) -> list[str]:
    """Return the cells of a claim with what was seen of it at own rates, both rates among them."""
    chosen = [f"{each['rate']}{'*' * each['end']}" for each in row.get("tuned", ())]
    name, what, *seen = _cells(row)
    return [name, what, *[*chosen, "", ""][:2], *seen]


def _before(outcome: Row | None) -> str:
    """Return a verdict at one rate with its difference."""
    if outcome is None or outcome["verdict"] == "failed":
        return outcome["verdict"] if outcome else ""
    return f"{outcome['difference']:+.3f} {outcome['verdict']}"


RATES = ("one_rate", "own_rates", ("at one rate for all", "at own rates"))
SIZES = ("own_rates", "larger", ("0.07 million", "with 0.8 million"))
"""What is set against each other: two entries of rows, and the words for them."""
HEAD = ("method", "what its paper claims, seen here as", "method", "rival", "difference", "verdict")
OWN_HEAD = (*HEAD[:2], "rate", "rival's", *HEAD[2:])


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table of claims with their outcomes."""
    return markdown(HEAD, [_cells(row) for row in sorted(rows, key=_method)])


def markdown(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body))


def _cells(row: Row) -> list[str]:
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


PAGE = """# Does each method do what its paper says?

Recorded by `make zoo` (`scripts/effects.py`, `scripts/claims.py`): {count} claims, three seeds each, all runs of an
arena from one warmed-up tiny model of 70,000 parameters, {larger} of the claims from one of 800,000, too. Method and
rival differ in nothing but the method and, where the table says so, the learning rate. Intervals are 95 % of the mean
paired difference over seeds (Student). "No worse" allows {margin} of pass@1.

A toy of such a size can show that an idea acts as described; it cannot show that it pays at scale, and where it
shows nothing, the idea may still be right where it was meant to be. Some claims are compared on a pretrained model of
135 million parameters, too ([what has been run](effects_pretrained.md)).

{summary}

**Rates.** {own} claims are compared as [`grouprl compare`](compare.md) does it: each method and each rival at its own
learning rate, the best by `eval/pass@1` of three (the arena's rate, a third of it and three times it; where data are
stale a tenth, a third and the rate itself), tried on one seed that is none of the three. A rate with a * is the end of
its sweep, so that a better one may lie beyond. One seed chooses coarsely: a rate at which other seeds do badly may win,
and a method that unlearns is best where it moves least. {rest} claims have been compared at the arena's rate alone, one
for all; each table says which. Of those, {left} that are not shown or opposite may change at rates of their own.

Claims that were tried at both, by verdict:

{moved}

**Sizes.** {larger} claims are compared with a model of 0.8 million parameters, too, in the same way, at a third of the
rates. Claims that were tried with both, each method at its own rate, by verdict:

{sizes}

Measures: `eval/…` on held-out prompts after training, `train/…` the mean of the last ten steps, `whole/…` of all
steps, `distinct_right` the different correct completions per group of 16 in the last step, `length_right` the tokens
of correct completions there.

{sections}
"""
