"""Rows of data with the numbers by which messages call them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grouprl.core.json_types import JsonMapping


@dataclass(frozen=True)
class Table:
    """Rows, each with the number that messages use for it: `unit` and `numbers` give "line 3 of data.jsonl"."""

    name: str
    rows: Sequence[JsonMapping]
    numbers: Sequence[int]
    unit: str

    def label(self, position: int) -> str:
        """Return the name of the row at a position in messages."""
        return f"{self.unit} {self.numbers[position]} of {self.name}"
