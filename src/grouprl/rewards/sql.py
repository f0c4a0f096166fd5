"""Rewards of a written SQL query: executed against a small database in memory, and compared with a right one.

A query comes from a model, so SQLite is told to refuse everything but reading: no other files, no pragmas, no
functions outside a short list, a bounded number of steps and rows.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

READING = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
FUNCTIONS = frozenset(
    {"max", "min", "sum", "count", "avg", "total", "abs", "round", "length", "lower", "upper", "like"}
)
STEPS = 100_000
"""Instructions of the machine inside SQLite after which a query is stopped."""
ROWS = 30_000
"""Rows of a result; more is refused, never cut. A query that takes no more than `STEPS` hardly reaches it."""
LENGTH, PATTERN = 10_000, 200
"""Characters of a value, and of a pattern of "like"."""
LONGEST = 2000
TOKEN = re.compile(r"[a-z_][a-z_0-9]*|\d+(?:\.\d+)?|'[^']*'|<=|>=|<>|!=|[^\sa-z_0-9]")
PARTIAL = {"execution": 3.0, "syntax": 1.0, "schema": 1.0, "ngram": 1.0}
"""Weights of Reasoning-SQL (Pourreza et al. 2025, arXiv 2503.23157) without its judge; normalised to a sum of 1."""


class QueryError(ValueError):
    """A query that cannot be run; the message is SQLite's."""


def run_query(query: str, tables: Mapping[str, Mapping[str, Sequence[Any]]]) -> list[tuple[Any, ...]]:
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
        connection.set_authorizer(_authorise)
        connection.set_progress_handler(lambda: 1, STEPS)
        if sys.version_info >= (3, 11):
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


def sql_components(query: str, gold: str, tables: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, float]:
    """Return what Reasoning-SQL pays for, each in [0, 1]; a right query has 1 everywhere.

    `execution`: the same rows as the right query, in any order unless that one has "order by". `syntax`: it runs.
    `schema`: Jaccard index of the tables and columns used. `ngram`: Jaccard index of pairs of tokens.
    """
    wanted = run_query(gold, tables)
    try:
        found: list[tuple[Any, ...]] | None = run_query(query, tables)
    except QueryError:
        found = None
    names = {*tables, *(column for columns in tables.values() for column in columns)}
    ours, theirs = sql_tokens(query), sql_tokens(gold)
    return {
        "execution": float(found is not None and same_rows(found, wanted, ordered="order by" in gold.lower())),
        "syntax": float(found is not None),
        "schema": jaccard(names & set(ours), names & set(theirs)),
        "ngram": jaccard(set(pairwise(ours)), set(pairwise(theirs))),
    }


def sql_reward(components: Mapping[str, float], weights: Mapping[str, float] = PARTIAL) -> dict[str, float]:
    """Return the components times their weights, which are scaled so that a right query has 1 in all."""
    total = sum(weights.values())
    return {name: weight / total * components[name] for name, weight in weights.items()}


def same_rows(found: Sequence[tuple[Any, ...]], wanted: Sequence[tuple[Any, ...]], *, ordered: bool) -> bool:
    """Whether two results hold the same rows, counted; in the same order too if `ordered`."""
    return list(found) == list(wanted) if ordered else Counter(found) == Counter(wanted)


def jaccard(ours: set[Any], theirs: set[Any]) -> float:
    """Return the size of the intersection over that of the union; 1 if both sets are empty."""
    return len(ours & theirs) / len(ours | theirs) if ours | theirs else 1.0


def sql_tokens(query: str) -> list[str]:
    """Return the words, numbers, texts and signs of a query, in small letters."""
    return TOKEN.findall(query.lower())


def _fill(connection: sqlite3.Connection, name: str, columns: Mapping[str, Sequence[Any]]) -> None:
    heads, marks = ", ".join(f'"{column}"' for column in columns), ", ".join("?" * len(columns))
    connection.execute(f'create table "{name}" ({heads})')
    connection.executemany(f'insert into "{name}" values ({marks})', list(zip(*columns.values(), strict=True)))


def _authorise(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    allowed = action in READING or (action == sqlite3.SQLITE_FUNCTION and str(second).lower() in FUNCTIONS)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
