"""Filters, order and pages of stored rows."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.compute as pc

from grouprl.core.errors import InputError, suggest
from grouprl.core.json_types import JsonObject
from grouprl.view.app.parameters import Parameters
from grouprl.view.app.row_table import COLUMNS

WHOLE = ("step", "group", "sample", "row")
NAMES = ("prompt_id", "agent", "source", "ended", "status")
FLAGS = ("correct", "used")
RANGES = ("reward", "length", "advantage", "entropy", "logp", "pull", "gradient", "score")
PAGE, LARGEST_PAGE = 50, 1000
"""Rows of a page by default and at most."""
EXCERPT = 240
"""Largest number of characters of a prompt or completion in a listing."""
TOTALS = (
    ("prompt_id", "first"),
    ("place", "count"),
    ("reward", "mean"),
    ("reward", "min"),
    ("reward", "max"),
    ("length", "mean"),
    ("pull", "sum"),
    ("gradient", "sum"),
    ("margin", "first"),
)
"""Columns of a listing of groups, and how each is put together from the group's rows."""
PARAMETERS = (
    "run",
    *WHOLE,
    *NAMES,
    *FLAGS,
    *(f"{name}_{end}" for name in RANGES for end in ("min", "max")),
    *("text", "sort", "offset", "limit"),
)
"""Parameters of a listing of rows: exact values, the ends of ranges, a text to search for, the order, and the page."""


def selected(rows: pa.Table, asked: Parameters) -> pa.Table:
    """Return the rows that a question selects, in its order.

    Raises:
        InputError: a value is of the wrong kind, or the column to sort by is unknown.
    """
    wanted = _wanted(rows, asked)
    return _sorted(rows.filter(wanted) if wanted is not None else rows, asked.text("sort", "step"))


def page_of(rows: pa.Table, asked: Parameters) -> JsonObject:
    """Return a page of the selected rows as plain data, with the number of all of them.

    Raises:
        InputError: see `selected`; or the page is out of bounds.
    """
    found = selected(rows, asked)
    offset, limit = asked.whole("offset", 0) or 0, asked.whole("limit", PAGE)
    assert limit is not None
    if offset < 0 or not 1 <= limit <= LARGEST_PAGE:
        raise InputError(
            f"offset {offset}, limit {limit}", f"a page begins at 0 or later and has 1 to {LARGEST_PAGE} rows"
        )
    shown = [_brief(row) for row in found.slice(offset, limit).to_pylist()]
    return {"total": len(found), "of": len(rows), "offset": offset, "limit": limit, "rows": shown}


def _brief(row: JsonObject) -> JsonObject:
    return row | {name: _cut(row[name]) for name in ("prompt", "completion")}


def _cut(text: str | None) -> str:
    whole = text or ""
    return whole if len(whole) <= EXCERPT else f"{whole[:EXCERPT]} …"


def _wanted(rows: pa.Table, asked: Parameters) -> pa.ChunkedArray | None:
    tests = [pc.equal(rows[name], value) for name in WHOLE if (value := asked.whole(name)) is not None]
    tests += [pc.equal(rows[name], text) for name in NAMES if (text := asked.text(name))]
    tests += [pc.equal(rows[name], _flag(name, text)) for name in FLAGS if (text := asked.text(name))]
    for name in RANGES:
        low, high = asked.number(f"{name}_min"), asked.number(f"{name}_max")
        tests += [pc.greater_equal(rows[name], low)] if low is not None else []
        tests += [pc.less_equal(rows[name], high)] if high is not None else []
    if text := asked.text("text"):
        found = [pc.match_substring(rows[name], text, ignore_case=True) for name in ("completion", "prompt")]
        tests.append(pc.or_(*(pc.fill_null(each, False) for each in found)))
    whole = None
    for test in tests:
        whole = test if whole is None else pc.and_(whole, test)
    return None if whole is None else pc.fill_null(whole, False)


def _flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise InputError(f"{name}={text}", "it must be true or false")
    return text == "true"


def _sorted(rows: pa.Table, order: str) -> pa.Table:
    column = order.removeprefix("-")
    if column not in COLUMNS.names:
        raise InputError(
            f"sort={order}", "rows are sorted by a column, downwards with a minus", suggest(column, COLUMNS.names)
        )
    keys = [(column, "descending" if order.startswith("-") else "ascending")]
    keys += [(name, "ascending") for name in ("step", "place") if name != column]
    return rows.take(pc.sort_indices(rows, sort_keys=keys))


def groups_of(rows: pa.Table, step: int) -> list[JsonObject]:
    """Return the groups of a step, those with the largest share of |advantage| first.

    Each has its rewards, lengths, and shares of |advantage| and of the gradient; and the margin of a pair's scores,
    null for other groups. Pairs with margins, which a reward model is trained on, begin with the lowest.
    """
    own = rows.filter(pc.equal(rows["step"], step))
    found = own.group_by("group", use_threads=False).aggregate(list(TOTALS))
    names = {f"{column}_{how}": column if how == "first" else f"{column}_{how}" for column, how in TOTALS}
    named = found.rename_columns([names.get(name, name) for name in found.column_names])
    listed: list[JsonObject] = named.to_pylist()
    return sorted(listed, key=_rank)


def _rank(group: JsonObject) -> tuple[float, float]:
    margin = group["margin"]
    return (math.inf if margin is None else margin, -(group["pull_sum"] or 0.0))


def choices(rows: pa.Table) -> JsonObject:
    """Return the values that occur in the columns with few of them, and the ends of those with numbers."""
    found: JsonObject = {name: sorted(filter(None, pc.unique(rows[name]).to_pylist())) for name in NAMES[1:]}
    found["step"] = sorted(pc.unique(rows["step"]).to_pylist())
    for name in RANGES:
        ends = pc.min_max(rows[name]).as_py()
        found[name] = [ends["min"], ends["max"]]
    return found
