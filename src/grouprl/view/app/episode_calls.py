"""The calls of an episode: its rows, and which of them began which."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.view.app.row_tokens import stored_rows

SHOWN = ("row", "agent", "reward", "length", "ended", "group", "place", "pull", "gradient")
"""Columns of a row that an answer holds."""


def calls_of(folder: Path, rows: pa.Table, step: int, prompt: str, sample: int) -> list[JsonObject]:
    """Return the rows of an episode in their order, each with its `caller`: the number of the row that began it.

    `caller` is None for a row that no other row of the episode began.

    Raises:
        InputError: the episode is not stored.
    """
    exact = {"step": step, "prompt_id": prompt, "sample": sample}
    tests = [pc.equal(rows[name], value) for name, value in exact.items()]
    mine = rows.filter(pc.and_(pc.and_(tests[0], tests[1]), tests[2]))
    if not len(mine):
        raise InputError(f"sample {sample} of {prompt} in step {step} is not stored", "rows are listed by /api/rows")
    found = [{name: row[name] for name in SHOWN} for row in mine.to_pylist()]
    callers = [row.get("caller") for row in stored_rows(folder, step, [row["place"] for row in found])]
    known = {row["row"] for row in found}
    told = [
        row | {"caller": caller if caller in known and caller != row["row"] else None}
        for row, caller in zip(found, callers, strict=True)
    ]
    return sorted(told, key=lambda row: (row["row"] or 0, row["place"]))
