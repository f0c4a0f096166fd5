"""Stored rollouts as one table with a line per row: what is filtered, sorted and searched, tokens left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from grouprl.core.json_types import JsonObject
from grouprl.view.pairs import is_pair, score_margin

COLUMNS = pa.schema(
    [
        ("step", pa.int64()),
        ("place", pa.int64()),
        ("group", pa.int64()),
        ("prompt_id", pa.string()),
        ("sample", pa.int64()),
        ("row", pa.int64()),
        ("agent", pa.string()),
        ("source", pa.string()),
        ("reward", pa.float64()),
        ("correct", pa.bool_()),
        ("length", pa.int64()),
        ("ended", pa.string()),
        ("status", pa.string()),
        ("used", pa.bool_()),
        ("advantage", pa.float64()),
        ("entropy", pa.float64()),
        ("logp", pa.float64()),
        ("pull", pa.float64()),
        ("gradient", pa.float64()),
        ("score", pa.float64()),
        ("margin", pa.float64()),
        ("prompt", pa.string()),
        ("completion", pa.string()),
    ]
)
"""Columns of the table. `place` is the number of the row in the file of its step, and `length` its tokens.

`advantage`, `entropy` and `logp` are means over the trained tokens. `pull` is the row's share of |advantage|, summed
over the trained tokens of its step; `gradient` is its true share of the gradient, null where the run has not measured
it (`run.record_updates`). `score` is that of the reward model that is trained; null where none is. `margin` is that of
the row's pair, by scores or by the vectors of a preference model; null for rows of other groups.
"""
LISTS = ("completion_ids", "mask", "advantage", "entropy", "behavior_logp")
SCORES = ("score", "scores")
"""Columns that a run which trains a reward model fills: one number of a row, and several by name."""


def file_table(path: Path) -> pa.Table:
    """Return the table of one stored step; one without rows if the file is damaged or no longer there."""
    try:
        file = pq.ParquetFile(path)
        known = file.schema_arrow.names
        wanted = [name for name in (*COLUMNS.names, "truncated", "scores", *LISTS) if name in known]
        stored = file.read(columns=list(dict.fromkeys(wanted)))
        stored.validate(full=True)  # of bytes that are not text, too
    except (OSError, pa.ArrowException):
        return COLUMNS.empty_table()
    return pa.table({name: _column(stored, name) for name in COLUMNS.names}, schema=COLUMNS)


def whole_table(tables: Sequence[pa.Table], *, graded: bool) -> pa.Table:
    """Return the tables of all steps as one; of a graded reward no row counts as right or wrong."""
    found = pa.concat_tables(tables) if tables else COLUMNS.empty_table()
    if not graded:
        return found
    nothing = pa.nulls(len(found), pa.bool_())
    return found.set_column(COLUMNS.get_field_index("correct"), COLUMNS.field("correct"), nothing)


def _column(stored: pa.Table, name: str) -> pa.Array | pa.ChunkedArray:
    count = len(stored)
    if name == "place":
        return pa.array(np.arange(count), pa.int64())
    if name == "length":
        return pa.array(_lengths(stored), pa.int64())
    if name == "ended":
        return _endings(stored)
    if name == "pull":
        return _pull(stored)
    if name == "margin":
        return _margins(stored)
    if name in ("advantage", "entropy", "logp"):
        return _mean(stored, "behavior_logp" if name == "logp" else name)
    if name not in stored.column_names:
        return pa.nulls(count, COLUMNS.field(name).type)
    return stored[name].cast(COLUMNS.field(name).type)


def _lengths(stored: pa.Table) -> np.ndarray:
    if "completion_ids" not in stored.column_names:
        return np.zeros(len(stored), np.int64)
    return np.asarray(pc.fill_null(pc.list_value_length(stored["completion_ids"]), 0).to_numpy(), np.int64)


def _endings(stored: pa.Table) -> pa.ChunkedArray:
    """Return why each row ended: the reason of an episode, else whether a limit cut it off."""
    none = pa.chunked_array([pa.nulls(len(stored), pa.bool_())])
    cut = stored["truncated"] if "truncated" in stored.column_names else none
    plain = pc.if_else(pc.fill_null(cut, False), "cut off", "ended")
    if "ended" not in stored.column_names:
        return plain
    told = stored["ended"].cast(pa.string())
    return pc.if_else(pc.equal(pc.fill_null(told, ""), ""), plain, told)


def _tokens(stored: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the rows [N] and the values [N] of a column's trained tokens; None if the column is not stored.

    A policy over arrays stores one number a row: then it has one value.
    """
    if name not in stored.column_names:
        return None
    column = stored[name].combine_chunks()
    if not pa.types.is_list(column.type):
        known = np.asarray(pc.is_valid(column))
        return np.nonzero(known)[0], np.asarray(column.drop_null().cast(pa.float64()), float)
    rows, values = _flat(column)
    trained = _flat(stored["mask"].combine_chunks()) if "mask" in stored.column_names else None
    if trained is not None:
        beside = np.isin(trained[0], rows)  # a row that was not used has a mask, but no advantage
        if np.array_equal(trained[0][beside], rows):
            own = trained[1][beside].astype(bool)
            rows, values = rows[own], values[own]
    good = np.isfinite(values)
    return rows[good], values[good]


def _flat(column: pa.ListArray) -> tuple[np.ndarray, np.ndarray]:
    rows = np.asarray(pc.list_parent_indices(column), np.int64)
    return rows, np.asarray(pc.list_flatten(column).cast(pa.float64()).to_numpy(zero_copy_only=False), float)


def _mean(stored: pa.Table, name: str) -> pa.Array:
    """Return the mean of a column over the trained tokens of each row; null where there is none."""
    found, count = _tokens(stored, name), len(stored)
    if found is None:
        return pa.nulls(count, pa.float64())
    number = np.bincount(found[0], minlength=count)
    total = np.bincount(found[0], weights=found[1], minlength=count)
    return pa.array(total / np.maximum(number, 1), pa.float64(), mask=number == 0)


def _pull(stored: pa.Table) -> pa.Array:
    """Return each row's share of |advantage|, summed over the trained tokens of the step; null where all are zero."""
    found, count = _tokens(stored, "advantage"), len(stored)
    if found is None:
        return pa.nulls(count, pa.float64())
    total = np.bincount(found[0], weights=np.abs(found[1]), minlength=count)
    whole = total.sum()
    return pa.array(total / (whole or 1.0), pa.float64(), mask=np.full(count, whole == 0))


def _margins(stored: pa.Table) -> pa.Array:
    """Return the margin of the scores of each row's pair; null where the row is in none, or no scores are stored."""
    scored = [name for name in SCORES if name in stored.column_names and stored[name].null_count < len(stored)]
    if not scored or not {"group", "reward"} <= set(stored.column_names):
        return pa.nulls(len(stored), pa.float64())
    rows = stored.select(["group", "reward", *scored]).to_pylist()
    groups: dict[int, list[JsonObject]] = {}
    for row in sorted(rows, key=lambda row: -(row["reward"] or 0.0)):
        groups.setdefault(row["group"], []).append(row)
    margins = {number: score_margin(*group) for number, group in groups.items() if is_pair(group)}
    return pa.array([margins.get(row["group"]) for row in rows], pa.float64())
