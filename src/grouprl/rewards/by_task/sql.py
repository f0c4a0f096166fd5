"""Rewards of SQL queries, which run on a small in-memory database and are compared with a reference query.

A query comes from a model, so SQLite is told to allow only reading: no other files, no pragmas, no functions outside
a short list, and a bounded number of steps and rows.
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set

READING = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
AGGREGATES = ("max", "min", "sum", "count", "avg", "total", "group_concat")
SCALARS = (
    *("abs", "round", "sign", "ceil", "ceiling", "floor", "mod", "length", "lower", "upper", "like", "glob", "typeof"),
    *("coalesce", "ifnull", "nullif", "iif", "substr", "substring", "instr", "trim", "ltrim", "rtrim", "replace"),
)
WINDOWS = (
    *("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile"),
    *("lag", "lead", "first_value", "last_value", "nth_value"),
)
FUNCTIONS = frozenset((*AGGREGATES, *SCALARS, *WINDOWS))
"""Functions that only compute: none reads a clock, a file or chance."""
STEPS = 100_000
"""Instructions of SQLite's virtual machine after which a query is stopped."""
ROWS = 30_000
"""Largest number of rows of a result; a larger one is refused, never cut. `STEPS` usually stops a query earlier."""
LENGTH, PATTERN = 10_000, 200
"""Largest number of characters of a value, and of a pattern of "like"."""
LONGEST = 2000
LONGEST_VALUE = 1_000_000
"""Largest size in bytes of a text or row that a query may build (before Python 3.11: SQLite's 10⁹)."""
HEAP = 64 << 20
"""Bytes that SQLite may allocate in this process: nested columns (x||x of x||x of …) already expand during parsing."""
TOKEN = re.compile(r"[a-z_][a-z_0-9]*|\d+(?:\.\d+)?|'[^']*'|<=|>=|<>|!=|[^\sa-z_0-9]")
NUMBER, TEXT = re.compile(r"(?<![\w.])\d{1,15}(?![\w.])"), re.compile(r"'[^']*'")
VARIANTS, COMPARED, FEWEST = 40, 8, 8
"""Numbers of variants of the tables that are tried and compared, and the fewest rows of a table in a variant."""
PARTIAL = {"execution": 3.0, "syntax": 1.0, "schema": 1.0, "ngram": 1.0}
"""Weights of Reasoning-SQL (Pourreza et al. 2025, arXiv 2503.23157) without its judge; normalised to a sum of 1."""


Tables = Mapping[str, Mapping[str, Sequence[object]]]
"""Name of a table -> name of a column -> values."""


class QueryError(ValueError):
    """A query cannot be run; the message is SQLite's."""


def run_query(query: str, tables: Tables) -> list[tuple[object, ...]]:
    """Return the rows that a query gives on `tables` (name -> column -> values).

    Raises:
        QueryError: if it does not parse, fails, does more than read, or takes too long.
    """
    if len(query) > LONGEST or "\0" in query:
        raise QueryError("too long")
    connection = sqlite3.connect(":memory:")
    try:
        for name, columns in tables.items():
            _fill(connection, name, columns)
        connection.execute(f"pragma hard_heap_limit={HEAP}")
        connection.set_authorizer(_authorise)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
        connection.set_progress_handler(lambda: 1, STEPS)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LENGTH)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN)
        found = connection.execute(query)
        if found.description is None:
            raise QueryError("no query")
        rows = found.fetchmany(ROWS + 1)
        if len(rows) > ROWS:
            raise QueryError(f"more than {ROWS} rows")
        return rows
    except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError, MemoryError) as error:
        raise QueryError(str(error)) from None
    finally:
        connection.close()


def sql_components(query: str, gold: str, tables: Tables) -> dict[str, float]:
    """Return the components of Reasoning-SQL's reward, each in [0, 1]; a right query has 1 everywhere.

    `execution`: the same rows as the right query, in any order unless that one has "order by"; rows that the query
    merely spells out do not count, nor does an empty result by itself where the right one is empty (`is_right`).
    `syntax`: it runs.
    `schema`: Jaccard index of the tables and columns used. `ngram`: Jaccard index of pairs of tokens.
    """
    found = _rows(query, tables)
    names = {*tables, *(column for columns in tables.values() for column in columns)}
    ours, theirs = sql_tokens(query), sql_tokens(gold)
    return {
        "execution": float(found is not None and is_right(query, gold, tables)),
        "syntax": float(found is not None),
        "schema": jaccard(names & set(ours), names & set(theirs)),
        "ngram": jaccard(set(pairwise(ours)), set(pairwise(theirs))),
    }


def is_right(query: str, gold: str, tables: Tables) -> bool:
    """Return whether a query gives the rows of the right one and does not merely spell them out ("select 7").

    Both also run on variants of the tables with other values of the same kind. If the right query finds something in
    `tables`, the other one must give the same rows there, and on at least half of the variants on which the right one
    finds other rows: all of them would refuse queries that differ only where there are ties. If the right query finds
    nothing, every query that finds nothing would match: the two must agree on all variants where the right one finds
    something; if there are none, the query must be the right one, word for word.

    Raises:
        QueryError: if the right query cannot be run.
    """
    ordered = "order by" in gold.lower()
    wanted, found = run_query(gold, tables), _rows(query, tables)
    if found is None or not same_rows(found, wanted, ordered=ordered):
        return False
    others = ((other, run_query(gold, other)) for other in (changed(tables, gold, n) for n in range(VARIANTS)))
    telling = list(islice((pair for pair in others if _tells(pair[1])), COMPARED))
    both = [(_rows(query, other), rows) for other, rows in telling]
    agree = [rows is not None and same_rows(rows, right, ordered=ordered) for rows, right in both]
    if _tells(wanted):
        moved = [
            same for same, (_, right) in zip(agree, both, strict=True) if not same_rows(right, wanted, ordered=ordered)
        ]
        return 2 * sum(moved) >= len(moved)
    return all(agree) if telling else sql_tokens(query) == sql_tokens(gold)


def changed(tables: Tables, gold: str, number: int) -> Tables:
    """Return variant `number` of the tables: values drawn from their columns and close to the query's constants."""
    rng = random.Random(number)
    named = [int(word) + step for word in NUMBER.findall(gold) for step in (-1, 0, 1)]
    texts = [text[1:-1] for text in TEXT.findall(gold)]
    return {
        name: {column: _mixed(values, named, texts, rng) for column, values in columns.items()}
        for name, columns in tables.items()
    }


def _mixed(values: Sequence[object], named: list[int], texts: list[str], rng: random.Random) -> list[object]:
    """Return new values of the kind that a column holds: as many as it has, but at least `FEWEST`.

    Values that differ, such as those of a key, stay different where there are enough of them.
    """
    text = bool(values) and isinstance(values[0], str)
    pools: list[Sequence[object]] = [list(values), texts] if text else [list(values), named, range(100)]
    pools = [pool for pool in pools if pool] or [range(100)]
    count = max(len(values), FEWEST)
    different = list(dict.fromkeys(value for pool in pools for value in pool))
    if len(values) > 1 and len(set(values)) == len(values) and len(different) >= count:
        return rng.sample(different, count)
    return [rng.choice(rng.choice(pools)) for _ in range(count)]


def _tells(rows: Sequence[tuple[object, ...]]) -> bool:
    """Return whether a result holds more than a query that finds nothing would return."""
    return any(value not in (None, 0, "") for row in rows for value in row)


def _rows(query: str, tables: Tables) -> list[tuple[object, ...]] | None:
    try:
        return run_query(query, tables)
    except QueryError:
        return None


def sql_reward(components: Mapping[str, float], weights: Mapping[str, float] = PARTIAL) -> dict[str, float]:
    """Return the components times their weights, which are scaled so that a right query earns 1 in total."""
    total = sum(weights.values())
    return {name: weight / total * components[name] for name, weight in weights.items()}


def same_rows(found: Sequence[tuple[object, ...]], wanted: Sequence[tuple[object, ...]], *, ordered: bool) -> bool:
    """Return whether two results hold the same rows equally often, and in the same order if `ordered`."""
    return list(found) == list(wanted) if ordered else Counter(found) == Counter(wanted)


def jaccard(ours: Set[object], theirs: Set[object]) -> float:
    """Return the size of the intersection over that of the union; 1 if both sets are empty."""
    return len(ours & theirs) / len(ours | theirs) if ours | theirs else 1.0


def sql_tokens(query: str) -> list[str]:
    """Return the words, numbers, strings and operators of a query, in lower case."""
    return TOKEN.findall(query.lower())


def _fill(connection: sqlite3.Connection, name: str, columns: Mapping[str, Sequence[object]]) -> None:
    heads, marks = ", ".join(f'"{column}"' for column in columns), ", ".join("?" * len(columns))
    connection.execute(f'create table "{name}" ({heads})')
    connection.executemany(f'insert into "{name}" values ({marks})', list(zip(*columns.values(), strict=True)))


def _authorise(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    allowed = action in READING or (action == sqlite3.SQLITE_FUNCTION and str(second).lower() in FUNCTIONS)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
