"""Rows of a file or folder of any kind: JSON lines, Parquet, CSV, a Hugging Face data set."""

from __future__ import annotations

from pathlib import Path

from grouprl.core.errors import InputError
from grouprl.tasks.adapters.huggingface import read_splits
from grouprl.tasks.adapters.jsonl import read_lines
from grouprl.tasks.table import Table

DATA_SETS = (".parquet", ".csv")
"""Endings of files that the package datasets reads; folders are data sets, too, and other files are JSON lines."""


def read_table(path: str, train_split: str = "train", eval_split: str | None = None) -> tuple[Table, Table | None]:
    """Return the rows of a file or a folder: of a data set one split or two, of JSON lines one table.

    Raises:
        InputError: it cannot be read, has no such split, or is a file without splits of which one is named.
        MissingExtra: the package datasets is not installed, and the file or folder needs it.
    """
    if path.lower().endswith(DATA_SETS) or Path(path).is_dir():
        return read_splits(path, train_split, eval_split)
    if eval_split is not None or train_split != "train":
        raise InputError(f"{path} has no splits", "JSON lines are one table", "Give held-out rows as 'eval'")
    return read_lines(path), None
