"""One group of a stored step with everything that is known of its tokens and turns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.view.tokens import Pieces

NUMBERS = ("behavior_logp", "entropy", "advantage", "log_ratio", "mask", "turn", "version")
"""Numbers of tokens, in the order of an answer's `columns`; those that a run does not store are left out."""


def group_of(folder: Path, rows: pa.Table, step: int, number: int, pieces: Pieces) -> JsonObject:
    """Return the rows of a group as plain data: those of the table, whole texts, tokens and turns; best first.

    Each row's `tokens` are lists of the token's text and the numbers named in `columns`; None where texts are unknown.

    Raises:
        InputError: the group is not stored.
    """
    mine = rows.filter(pc.and_(pc.equal(rows["step"], step), pc.equal(rows["group"], number)))
    if not len(mine):
        raise InputError(f"group {number} of step {step} is not stored", "rows are listed by /api/rows")
    found = sorted(mine.to_pylist(), key=lambda row: -1e300 if row["reward"] is None else row["reward"], reverse=True)
    whole = _stored(folder, step, [row["place"] for row in found])
    columns = [name for name in NUMBERS if any(row.get(name) is not None for row in whole)]
    shown = [row | _details(stored, pieces, columns) for row, stored in zip(found, whole, strict=True)]
    near = sorted({int(each) for each in pc.unique(rows.filter(pc.equal(rows["step"], step))["group"]).to_pylist()})
    place = near.index(number)
    beside = {
        "previous": near[place - 1] if place else None,
        "next": near[place + 1] if place + 1 < len(near) else None,
    }
    return {"step": step, "group": number, **beside, "columns": columns, "rows": shown}


def _stored(folder: Path, step: int, places: Sequence[int]) -> list[JsonObject]:
    path = folder / "rollouts" / f"step-{step:06d}.parquet"
    try:
        table = _file(path, path.stat().st_mtime_ns)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"step {step} cannot be read: {error}") from error
    found: list[JsonObject] = table.take(pa.array(places)).to_pylist()
    return found


@lru_cache(maxsize=2)
def _file(path: Path, changed: int) -> pa.Table:
    """Return a file's table, kept while its groups are looked at one after another; `changed` is its time of change."""
    return pq.read_table(path)


def _details(row: JsonObject, pieces: Pieces, columns: Sequence[str]) -> JsonObject:
    texts = pieces(row)
    tokens = (
        None
        if texts is None
        else [[text, *(_at(row.get(name), i) for name in columns)] for i, text in enumerate(texts)]
    )
    turns = [
        {name: turn.get(name) for name in ("number", "state", "action", "reward", "valid", "seen", "thinking")}
        for turn in row.get("turns") or ()
    ]
    return {
        "components": dict(row.get("components") or ()),
        "problem": row.get("problem"),
        "caller": row.get("caller"),
        "tokens": tokens,
        "turns": turns,
    }


def _at(values: object, place: int) -> float | None:
    """Return a token's number; a single number of a row holds for all of its tokens."""
    if isinstance(values, list):
        return round(float(values[place]), 5) if place < len(values) and values[place] is not None else None
    return None if values is None else round(float(str(values)), 5)
