"""One group of a stored step with everything that is known of its tokens and turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.view.pairs import named_scores, pair_of
from grouprl.view.tokens import Pieces

HELD = "held"
"""1 for a token with advantage and weight on which the loss has no derivative, because a clip or gate holds it back."""
NUMBERS = (
    "behavior_logp",
    "entropy",
    "advantage",
    "log_ratio",
    "ratio",
    "weight",
    "push",
    HELD,
    "mask",
    "turn",
    "version",
)
"""Numbers of tokens, in the order of an answer's `columns`; those that a run does not store are left out."""


def group_of(folder: Path, rows: pa.Table, step: int, number: int, pieces: Pieces) -> JsonObject:
    """Return the rows of a group as plain data: those of the table, whole texts, tokens and turns; best first.

    Each row's `tokens` are lists of the token's text and the numbers named in `columns`, None where texts are unknown;
    `calls` says whether its episode has several rows, `scores` are the numbers of a reward model by name, and `pair`
    the margins of a pair (`pair_of`). Log-probs and entropies that are 0 for every token were never measured: left out.

    Raises:
        InputError: the group is not stored.
    """
    mine = rows.filter(pc.and_(pc.equal(rows["step"], step), pc.equal(rows["group"], number)))
    if not len(mine):
        raise InputError(f"group {number} of step {step} is not stored", "rows are listed by /api/rows")
    found = sorted(mine.to_pylist(), key=lambda row: -1e300 if row["reward"] is None else row["reward"], reverse=True)
    whole = [row | _held(row) for row in stored_rows(folder, step, [row["place"] for row in found])]
    columns = [name for name in NUMBERS if any(_measured(row, name) for row in whole)]
    beside = rows.filter(pc.equal(rows["step"], step))
    sizes = Counter(zip(beside["prompt_id"].to_pylist(), beside["sample"].to_pylist(), strict=True))
    shown = [
        row | _details(stored, pieces, columns) | {"calls": sizes[row["prompt_id"], row["sample"]] > 1}
        for row, stored in zip(found, whole, strict=True)
    ]
    near = sorted({int(each) for each in pc.unique(beside["group"]).to_pylist()})
    place = near.index(number)
    neighbours = {
        "previous": near[place - 1] if place else None,
        "next": near[place + 1] if place + 1 < len(near) else None,
    }
    pair = pair_of([row | {"reward": one["reward"]} for row, one in zip(whole, found, strict=True)])
    return {"step": step, "group": number, **neighbours, "columns": columns, "pair": pair, "rows": shown}


def _measured(row: JsonObject, name: str) -> bool:
    """Return whether a row has numbers of a column; zeros stand for none where a model's own would not all be 0."""
    value = row.get(name)
    return value is not None and (name not in ("behavior_logp", "entropy") or value != [0.0] * len(value))


def _held(row: JsonObject) -> JsonObject:
    """Return which tokens of a row are held back; None where the run has not kept what its updates saw."""
    columns = [row.get(name) for name in ("advantage", "weight", "push")]
    if not all(isinstance(column, list) for column in columns):
        return {HELD: None}
    triples = zip(*columns, strict=False)
    return {HELD: [None if p is None else float(bool(a and w and not p)) for a, w, p in triples]}


def stored_rows(folder: Path, step: int, places: Sequence[int]) -> list[JsonObject]:
    """Return rows of a stored step by their places in its file.

    Raises:
        InputError: the file cannot be read.
    """
    path = folder / "rollouts" / f"step-{step:06d}.parquet"
    try:
        table = _file(path, path.stat().st_mtime_ns)
        first, count = min(places, default=0), len(places)
        if sorted(places) == list(range(first, first + count)):  # a group's rows mostly lie together
            near: list[JsonObject] = table.slice(first, count).to_pylist()
            found = [near[place - first] for place in places]
        else:
            found = table.take(pa.array(places)).to_pylist()
    except (OSError, pa.ArrowException, ValueError) as error:  # a ValueError: bytes that are not text
        raise InputError(f"step {step} cannot be read: {error}") from error
    return found


@lru_cache(maxsize=2)
def _file(path: Path, changed: int) -> pa.Table:
    """Return a file's table, kept while its groups are looked at one after another; `changed` is its time of change."""
    return pq.read_table(path)


def _details(row: JsonObject, pieces: Pieces, columns: Sequence[str]) -> JsonObject:
    texts = pieces(row)
    tokens = None
    if texts is not None:
        tokens = list(map(list, zip(texts, *(_numbers(row.get(name), len(texts)) for name in columns), strict=True)))
    turns = [
        {name: turn.get(name) for name in ("number", "state", "action", "reward", "valid", "seen", "thinking")}
        for turn in row.get("turns") or ()
    ]
    return {
        "components": dict(row.get("components") or ()),
        "scores": named_scores(row),
        "problem": row.get("problem"),
        "caller": row.get("caller"),
        "tokens": tokens,
        "turns": turns,
    }


def _numbers(values: object, count: int) -> list[float | None]:
    """Return the numbers of a row's tokens; a single number of a row holds for all of its tokens."""
    if not isinstance(values, list):
        return [None if values is None else _short(float(str(values)))] * count
    known = [None if value is None else _short(float(value)) for value in values[:count]]
    return known + [None] * (count - len(known))


def _short(value: float) -> float:
    """Return a number in six digits, however small it is: weights in the loss are as small as a step is large."""
    return float(f"{value:.6g}")
