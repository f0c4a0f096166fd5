"""Pairs under constraints, turned so that the winner keeps every one of them: reverse preference optimization."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping
from grouprl.tasks.table import Table

Turned = Literal["no", "chosen", "both"]
CONSTRAINTS = "constraints"
"""Column with the constraints of a prompt, each a mapping of `text` and its opposite, `negation`."""
MET = ("chosen_met", "rejected_met")
"""Columns with a list of true and false: which constraints each completion keeps."""


def turned_table(table: Table, turned: Turned, prompt: str, chosen: str, rejected: str) -> Table:
    """Return the pairs of a table under constraints that their winners keep; with "both" each completion wins once.

    Raises:
        InputError: a row without constraints, or whose constraints are not as many as each completion's verdicts.
    """
    if turned == "no":
        return table
    found = [
        (row, number)
        for place, (row, number) in enumerate(zip(table.rows, table.numbers, strict=True))
        for row in turned_rows(row, turned, (prompt, chosen, rejected), table.label(place))
    ]
    if not found:
        raise InputError(
            f"{table.name} has no pair that keeps different constraints",
            "a pair whose completions keep the same ones has no contrast, and is left out",
            "Leave out reverse",
        )
    return Table(table.name, [row for row, _ in found], [number for _, number in found], table.unit)


def turned_rows(row: JsonMapping, turned: Turned, columns: tuple[str, str, str], label: str) -> Iterator[JsonMapping]:
    """Yield a pair with every constraint that its winner violates turned into its negation (RPO, arXiv:2505.22172).

    The order of constraints stays. A pair whose completions keep the same constraints yields nothing.
    """
    prompt, chosen, rejected = columns
    texts, (first, second) = _constraints(row, label), (_met(row, name, label) for name in MET)
    if not isinstance(row.get(prompt), str):
        raise InputError(f"{label} has no text in '{prompt}'", "constraints are added to a prompt of plain text")
    for met in (first, second):
        if len(met) != len(texts):
            what = f"{label} has {len(texts)} constraints, and {len(met)} verdicts on a completion"
            raise InputError(what, f"{MET[0]} and {MET[1]} say of each constraint whether it is kept")
    if first == second:
        return
    for met, winner, loser in ((first, chosen, rejected), (second, rejected, chosen))[: 1 + (turned == "both")]:
        asked = "\n".join(text if kept else negation for (text, negation), kept in zip(texts, met, strict=True))
        yield {**row, prompt: f"{row[prompt]}\n{asked}", chosen: row[winner], rejected: row[loser]}


def _constraints(row: JsonMapping, label: str) -> Sequence[tuple[str, str]]:
    """Return the text and the negation of each constraint."""
    given = row.get(CONSTRAINTS)
    pairs = [(each.get("text"), each.get("negation")) for each in given or () if isinstance(each, dict)]
    if (
        not isinstance(given, list)
        or len(pairs) != len(given)
        or not all(isinstance(text, str) and text for pair in pairs for text in pair)
    ):
        raise InputError(
            f"{label} has no constraints with their negations",
            f"column '{CONSTRAINTS}' is a list of mappings with `text` and `negation`",
            "Leave out reverse, or add the column",
        )
    return [(str(text), str(negation)) for text, negation in pairs]


def _met(row: JsonMapping, column: str, label: str) -> list[bool]:
    """Return which constraints a completion keeps."""
    given = row.get(column)
    if not isinstance(given, list) or not all(isinstance(each, bool) for each in given):
        raise InputError(f"{label} has {given!r} in '{column}'", "it must be a list of true and false")
    return given
