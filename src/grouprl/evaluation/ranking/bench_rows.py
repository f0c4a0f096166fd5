"""Rows of RewardBench 1 and 2 as one form: a prompt, its right completions first, then the wrong ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping
from grouprl.tasks.table import Table

TIES = "ties"
"""The subset of RewardBench 2 whose rows have several right completions."""
KINDS = ("ref", "tied")
"""Beginnings of the ids of rows of `ties`: one right completion, or several."""


@dataclass(frozen=True)
class BenchRow:
    """A prompt with completions, of which the first `right` are right."""

    id: str
    subset: str
    prompt: str
    completions: tuple[str, ...]
    right: int

    @property
    def pair(self) -> bool:
        """True for a row of RewardBench 1: one right and one wrong completion."""
        return len(self.completions) == 2


def bench_rows(table: Table) -> Iterator[BenchRow]:
    """Yield the rows of a file in RewardBench's format, of either version.

    `chosen` and `rejected` are texts (RewardBench 1), or lists of texts (RewardBench 2, whose rows of the subset
    `ties` may have several chosen ones and the id "ref:7" or "tied:7").

    Raises:
        InputError: a row, which the message names, is not in this format.
    """
    for position, row in enumerate(table.rows):
        yield _row(row, table.label(position))


def _row(row: JsonMapping, label: str) -> BenchRow:
    missing = [name for name in ("prompt", "chosen", "rejected") if name not in row]
    if missing or not isinstance(row["prompt"], str):
        lacks = f"has no column '{missing[0]}'" if missing else "has a prompt that is not text"
        raise InputError(
            f"{label} {lacks}",
            "rows of RewardBench have the columns prompt, chosen and rejected, and a subset",
            "Conversations and other columns are the task pairs:FILE",
        )
    chosen, rejected = (_texts(row[name], f"{name} of {label}") for name in ("chosen", "rejected"))
    subset = str(row.get("subset", "all"))
    found = BenchRow(str(row.get("id", label)), subset, row["prompt"], (*chosen, *rejected), len(chosen))
    if subset.lower() == TIES:
        tie_of(found)
    elif len(chosen) != 1:
        raise InputError(
            f"{label} has {len(chosen)} chosen completions in the subset '{subset}'",
            "only rows of the subset Ties have several",
        )
    return found


def _texts(value: object, where: str) -> Sequence[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not texts or not all(isinstance(text, str) for text in texts):
        raise InputError(f"{where} is {value!r:.60}", "it must be a text, or a list of texts")
    return texts


def tie_of(row: BenchRow) -> tuple[str, str]:
    """Return ("ref" or "tied", the number of the question) of a row of the subset Ties, which its id holds.

    Raises:
        InputError: the id has another form.
    """
    kind, _, number = row.id.partition(":")
    if kind not in KINDS or not number:
        raise InputError(
            f"a row of the subset Ties has the id '{row.id}'",
            'it must be "ref:NUMBER" (one right answer) or "tied:NUMBER"',
        )
    return kind, number
