"""Rows of a file or folder of any kind: JSON lines, Parquet, CSV, a Hugging Face data set."""

from __future__ import annotations

from pathlib import Path

from grouprl.core.errors import InputError
from grouprl.tasks.adapters.huggingface import read_splits
from grouprl.tasks.adapters.jsonl import array_in, read_lines
from grouprl.tasks.table import Table

DATA_SETS = (".parquet", ".csv")
"""Endings of files that the package datasets reads; folders are data sets, too, and other files are JSON."""


def read_tables(
    path: str, train_split: str, eval_path: str | None, eval_split: str | None
) -> tuple[Table, Table | None]:
    """Return the rows to train on and, if a split or a file of their own is named, the held-out ones.

    Raises:
        InputError: as `read_table` does, and if both are named.
        MissingExtra: as `read_table` does.
    """
    train, held_out = read_table(path, train_split, eval_split)
    if eval_path is None:
        return train, held_out
    if held_out is not None:
        raise InputError("'eval' and 'eval_split' both name the held-out prompts", "only one of them may")
    return train, read_table(eval_path, train_split if Path(eval_path).is_dir() else "train")[0]


def read_table(path: str, train_split: str = "train", eval_split: str | None = None) -> tuple[Table, Table | None]:
    """Return the rows of a file or a folder: of a data set one split or two, of JSON lines or an array one table.

    Raises:
        InputError: it cannot be read, has no such split, or is a file without splits of which one is named.
        MissingExtra: the package datasets is not installed, and the file or folder needs it.
    """
    if path.lower().endswith(DATA_SETS) or Path(path).is_dir():
        return read_splits(path, train_split, eval_split)
    if eval_split is not None or train_split != "train":
        raise InputError(f"{path} has no splits", "a file of JSON is one table", "Give held-out rows as 'eval'")
    return array_in(path) or read_lines(path), None
