"""The page of a comparison: one self-contained file with its curves, tables and terms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape

from grouprl.experiments.result import BandedCurve, ComparisonResult
from grouprl.experiments.tables import ResultTable, facts, listings
from grouprl.view.charts import Series, at_each_width, chart
from grouprl.view.curves import COLOURS
from grouprl.view.report import whole_page

CURVE_WORDS = (
    "Interquartile mean over seeds of the held-out measure, straight between evaluations, with the 95 % band of a "
    "bootstrap over whole runs."
)
PROFILE_WORDS = "Share of runs whose final measure is {} a level, with its 95 % band: higher and further {} wins."
SIDES = {False: ("above", "right"), True: ("below", "left")}
"""By whether less of the measure is better: the side of a level that is counted, and the better end."""


def html(result: ComparisonResult, command: str) -> str:
    """Return the page; `command` is how it was made."""
    tables = listings(result)
    names = ["Result", "Curves", *(each.title for each in tables), "Command"]
    bodies = [_result(result), _charts(result), *map(_table, tables), f"<pre>{escape(command)}</pre>"]
    links = "".join(f'<a href="#s{n}">{escape(name)}</a>' for n, name in enumerate(names))
    sections = "".join(
        f'<section id="s{n}" aria-labelledby="h{n}"><h2 id="h{n}">{escape(name)}</h2>{body}</section>'
        for n, (name, body) in enumerate(zip(names, bodies, strict=True))
    )
    return whole_page("grouprl · comparison", links, sections)


def _result(result: ComparisonResult) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in result.notes)
    banner = f'<div class="banner"><ul>{notes}</ul></div>' if notes else ""
    verdict = result.verdict()
    return f'<p class="verdict-line">{escape(verdict)}</p><p class="facts">{escape(facts(result))}</p>{banner}'


def _charts(result: ComparisonResult) -> str:
    drawn = []
    for source in result.amounts:
        curves = [each for each in result.curves if each.source == source]
        drawn += _drawn(f"{source}: {result.measure} by {result.unit}", CURVE_WORDS, curves, result.unit)
    side, where = SIDES[result.lower_is_better]
    words = PROFILE_WORDS.format(side, where)
    drawn += _drawn(f"Performance profile: share of runs {side} a level", words, result.profiles, "level")
    return "".join(drawn)


def _drawn(title: str, words: str, curves: Sequence[BandedCurve], across: str) -> list[str]:
    """Return charts of at most as many curves as there are colours."""
    series = [Series(each.arm, each.x, each.y, low=each.low, high=each.high) for each in curves]
    parts = [series[first : first + COLOURS] for first in range(0, len(series), COLOURS)]
    titles = [title if len(parts) == 1 else f"{title} ({n} of {len(parts)})" for n in range(1, len(parts) + 1)]
    draws = [partial(chart, t, words, part, None, across=across) for t, part in zip(titles, parts, strict=True)]
    return [at_each_width(draw) for draw in draws]


def _table(table: ResultTable) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.head)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    about = f'<p class="muted">{escape(table.about)}</p>' if table.about else ""
    return (
        f'{about}<div class="scroll"><table class="numbers"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
