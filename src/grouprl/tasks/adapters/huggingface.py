"""Prompts from a Hugging Face dataset, on the Hub or in a local folder or file."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from grouprl.core.errors import InputError, MissingExtra, shortened, suggest
from grouprl.core.json_types import JsonObject
from grouprl.tasks.registry import register_task
from grouprl.tasks.rows import RowTask
from grouprl.tasks.table import Table
from grouprl.tasks.task import without_folder

FORMATS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv"}
SAVED = ("dataset_dict.json", "state.json")


@register_task("hf", argument="dataset")
class HuggingFace(RowTask):
    """A Hugging Face dataset (extra 'data'): a Hub id, a local folder, or a parquet, JSON or CSV file."""

    dataset: str = Field(description="Hub id, folder or file")
    config: str | None = Field(None, description="the dataset's configuration, where it has several")
    train_split: str = Field("train", description="the split to train on")
    eval_split: str | None = Field(None, description="the split to evaluate on; without it, see eval_fraction")

    @property
    def name(self) -> str:
        """The dataset after "hf:"."""
        return f"hf:{without_folder(self.dataset)}"

    @property
    def description(self) -> str:
        """A sentence that names the data set."""
        return f"Prompts from the Hugging Face dataset {self.dataset}."

    def read(self) -> tuple[Table, Table | None]:
        """Return the splits' rows."""
        return read_splits(self.dataset, self.train_split, self.eval_split, self.config)


def read_splits(
    dataset: str, train_split: str = "train", eval_split: str | None = None, config: str | None = None
) -> tuple[Table, Table | None]:
    """Return a split of a dataset to train on and, if one is named, one to evaluate on.

    Raises:
        InputError: it cannot be loaded, or has no such split.
        MissingExtra: the package datasets is not installed.
    """
    splits = _load(dataset, config)
    train = _table(dataset, splits, train_split)
    return train, _table(dataset, splits, eval_split) if eval_split is not None else None


def _table(dataset: str, splits: Mapping[str, Sequence[JsonObject]], split: str) -> Table:
    if split not in splits:
        raise InputError(f"{dataset} has no split '{split}'", remedy=suggest(split, splits))
    return Table(f"{without_folder(dataset)}/{split}", splits[split], range(len(splits[split])), "row")


def _load(name: str, config: str | None) -> Mapping[str, Sequence[JsonObject]]:
    """Return the splits of a dataset.

    Raises:
        InputError: if it cannot be loaded, with the library's reason.
        MissingExtra: the package datasets is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra("datasets", "data", f"The task 'hf:{name}'") from error
    path = Path(name)
    if not _is_path(path):
        raise InputError(f"The dataset {shortened(name)} is neither a file, a folder nor a Hub id")
    if path.is_file() and path.suffix not in FORMATS:
        raise InputError(f"The file '{name}' ends in '{path.suffix}'", f"it ends in {', '.join(FORMATS)}")
    try:
        if path.is_file():
            options = _as_text(path) if path.suffix == ".csv" else {}
            found = datasets.load_dataset(FORMATS[path.suffix], data_files=str(path), **options)
        elif any((path / marker).is_file() for marker in SAVED):
            found = datasets.load_from_disk(name)
        else:
            found = datasets.load_dataset(name, config)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"The dataset '{name}' cannot be loaded", f"{type(error).__name__}: {error}") from error
    return dict(found) if isinstance(found, dict) else {"train": found}


def _is_path(path: Path) -> bool:
    """Return whether the system could have a file of this name."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    return True


def _as_text(path: Path) -> Mapping[str, Sequence[JsonObject]]:
    """Return options for a CSV file whose columns are read as written: 007 does not become 7, and NA is not dropped.

    Raises:
        InputError: if two columns have the same name.
    """
    import datasets

    with path.open(encoding="utf-8-sig", newline="") as file:
        names = next(csv.reader(file), [])
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise InputError(f"{path} has two columns '{double}'", "each column has a name of its own")
    text = datasets.Features({name: datasets.Value("string") for name in names})
    return {"features": text, "keep_default_na": False}
