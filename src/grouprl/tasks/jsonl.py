"""Questions from a JSON-lines file."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field

from grouprl.errors import InputError
from grouprl.tasks.registry import register_task
from grouprl.tasks.rows import RowTask, Table


@register_task("jsonl", argument="path")
class Jsonl(RowTask):
    """Your own questions: a file with one JSON object a line, a prompt column, and columns for the reward."""

    path: str = Field(description="the file")
    eval_path: str | None = Field(None, alias="eval", description="a file of held-out questions")

    @property
    def name(self) -> str:
        """The path after "jsonl:"."""
        return f"jsonl:{self.path}"

    @property
    def description(self) -> str:
        """Where the questions come from."""
        return f"Questions from the file {self.path}."

    def read(self) -> tuple[Table, Table | None]:
        """Return the files' lines."""
        return _read_lines(self.path), _read_lines(self.eval_path) if self.eval_path is not None else None


def _read_lines(path: str) -> Table:
    """Return the objects of a JSON-lines file; blank lines are skipped.

    Raises:
        InputError: if there is no such file, or naming the line that is not a JSON object in UTF-8.
    """
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"The file '{path}' cannot be read: {error.strerror}", remedy=f"Looked for {Path(path).resolve()}."
        ) from error
    rows, numbers = [], []
    for number, line in enumerate(raw.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except ValueError as error:
            raise InputError(f"Line {number} of {path} is not JSON: {error}", "each line is one JSON object") from error
        if not isinstance(row, dict):
            raise InputError(f"Line {number} of {path} is a JSON {type(row).__name__}", "each line is one JSON object")
        rows.append(row)
        numbers.append(number)
    return Table(path, rows, numbers, "line")
