"""The data that a run uses: stored when the run begins, so that a resumed run can say how it has changed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from grouprl.config.run import Config
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping
from grouprl.storage.run_folder import RunFolder, write_json
from grouprl.tasks.table import Table
from grouprl.tasks.task import Task

KEPT = 4_000_000
"""Largest table, in characters, that a run keeps in full; of a larger one it keeps only the hashes."""
DIGEST = 12
"""Characters of a row's hash."""
SHOWN = 300
"""Characters of a row that a message shows."""


@dataclass(frozen=True)
class Kept:
    """A stored table: the hash of each row, and the full rows if they are not too long."""

    name: str
    digests: str
    texts: list[str]

    def rows(self) -> list[str]:
        """Return the hash of each row."""
        return [self.digests[at : at + DIGEST] for at in range(0, len(self.digests), DIGEST)]


def remember_data(run: RunFolder, task: Task) -> None:
    """Store the rows of the task's data, or their hashes, in the run folder."""
    if tables := task.tables():
        write_json(run.data, [vars(each) for each in _kept(tables)])


def refuse_missing(run: RunFolder, config: Config) -> None:
    """Refuse to continue if a data file is missing.

    Raises:
        InputError: a file that the configuration names is gone.
    """
    task = json.dumps(config.task, ensure_ascii=False)
    for kept in _stored(run):
        if Path(kept.name).is_absolute() and kept.name in task and not Path(kept.name).exists():
            raise InputError(
                f"{kept.name} is gone, and the run {run.path} reads it",
                "a resumed run continues with the same prompts",
                "Put it back, or give its new path: --set task.path=NEW/PLACE, or --set task=… as it was given",
            )


def refuse_data(run: RunFolder, task: Task) -> None:
    """Refuse to continue with a changed task, and say which of its data changed.

    Raises:
        InputError: always.
    """
    pairs = list(zip(_stored(run), task.tables(), strict=False))
    found = [(table.name, lines) for kept, table in pairs if (lines := _difference(kept, table))]
    names = ", ".join(name for name, _ in found) or f"the task '{task.name}'"
    told = "\n".join([":", *(line for _, lines in found for line in lines), ""]) if found else ""
    raise InputError(
        f"{names} {'have' if len(found) > 1 else 'has'} changed since the run {run.path} began{told}",
        "a resumed run continues with the same prompts",
        "Restore the data, accept it with --accept-changes, or start a new run",
    )


def _kept(tables: Sequence[Table]) -> Iterable[Kept]:
    left = KEPT
    for table in tables:
        digests, texts = [], []
        for row in table.rows:
            text = _text(row)
            digests.append(_digest(text))
            if len(text) <= left:
                texts.append(text)
            left -= len(text)
        yield Kept(table.name, "".join(digests), texts if left >= 0 else [])


def _stored(run: RunFolder) -> list[Kept]:
    with suppress(OSError, ValueError, TypeError):
        return [Kept(**each) for each in json.loads(run.data.read_bytes())]
    return []


def _difference(then: Kept, now: Table) -> list[str]:
    """Describe, line by line, how two tables differ: the number of changed rows, and the first one then and now."""
    old, new = then.rows(), _digests(now)
    if old == new:
        return []
    at = next((i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), min(len(old), len(new)))
    here = _text(now.rows[at]) if at < len(new) else ""
    there = then.texts[at] if at < len(old) and then.texts else ""
    begin = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), 0)
    where = now.label(at) if at < len(new) else f"{now.unit} {at + 1} of {then.name}"
    lines = [f"{_counts(old, new)}. The first difference is {where}:"]
    if at < len(old):
        lines.append(f"- {_short(there, begin)}" if there else "- (the earlier rows were not kept: the data is large)")
    return [*lines, f"+ {_short(here, begin)}"] if here else lines


def _counts(old: list[str], new: list[str]) -> str:
    """Say how many rows were changed, added and removed."""
    added, removed = (Counter(new) - Counter(old)).total(), (Counter(old) - Counter(new)).total()
    if not added and not removed:
        return f"The {len(new):,} rows are in another order"
    if len(old) == len(new) and sum(a != b for a, b in zip(old, new, strict=True)) == added == removed:
        return f"{added:,} of {len(new):,} rows changed"
    return f"Rows added: {added:,}, removed: {removed:,} ({len(old):,} then, {len(new):,} now)"


def _digests(table: Table) -> list[str]:
    return [_digest(_text(row)) for row in table.rows]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST]


def _text(row: JsonMapping) -> str:
    return json.dumps(row, ensure_ascii=False, sort_keys=True, default=str)


def _short(text: str, at: int) -> str:
    """Return a row; if it is long, only the part around the character at which it differs."""
    begin = 0 if len(text) <= SHOWN else max(0, at - SHOWN // 3)
    return f"{'…' * (begin > 0)}{text[begin : begin + SHOWN]}{'…' * (begin + SHOWN < len(text))}"
