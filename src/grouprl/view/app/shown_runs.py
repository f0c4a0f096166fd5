"""The runs that the application shows: found in folders, and read again when their files have changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock

import pyarrow as pa

from grouprl.core.errors import InputError, suggest
from grouprl.storage.run_folder import runs_meant
from grouprl.view.app.row_table import file_table, whole_table
from grouprl.view.runfiles import RunData, read_run
from grouprl.view.tokens import Pieces, token_texts

FILES = ("config.yaml", "metrics.jsonl", "summary.json", "health.json", "samples.json")
Signature = tuple[tuple[str, int, int], ...]
"""Name, size and time of change of each file that was read."""


class RunLibrary:
    """Runs by name. Nothing is written, and no code of a run is loaded."""

    def __init__(self, places: Sequence[Path]) -> None:
        """Take run folders, and folders that hold run folders.

        Raises:
            InputError: one is neither.
        """
        self.places = tuple(places)
        self._runs: dict[Path, tuple[Signature, RunData]] = {}
        self._files: dict[Path, tuple[Signature, pa.Table]] = {}
        self._lock = Lock()
        for place in self.places:
            if not _folders(place):
                what = f"there is no run in {place}" if place.is_dir() else f"the folder {place} does not exist"
                raise InputError(what, "a run folder, or a folder that holds some, is shown", runs_meant(place))

    def folders(self) -> dict[str, Path]:
        """Return the folder of each run by its name, as it is now; names that occur twice include their parents."""
        found = list(dict.fromkeys(folder for place in self.places for folder in _folders(place)))
        names = [folder.resolve().name for folder in found]
        return {_name(folder, names.count(name) > 1): folder for folder, name in zip(found, names, strict=True)}

    def folder(self, name: str) -> Path:
        """Return the folder of a run.

        Raises:
            InputError: there is no run of this name.
        """
        known = self.folders()
        if name not in known:
            raise InputError(f"there is no run '{name}'", remedy=suggest(name, known))
        return known[name]

    def data(self, name: str) -> RunData:
        """Return what is in a run's folder, rollouts left out."""
        folder = self.folder(name)
        seen = _signature(folder / each for each in FILES)
        with self._lock:
            if folder not in self._runs or self._runs[folder][0] != seen:
                self._runs[folder] = seen, read_run(folder, rollouts=False)
            return self._runs[folder][1]

    def rows(self, name: str) -> pa.Table:
        """Return the table of all stored rows of a run (see `row_table`); only files that are new are read."""
        folder = self.folder(name)
        paths = sorted(folder.glob("rollouts/step-*.parquet"))
        with self._lock:
            for path in paths:
                seen = _signature((path,))
                if path not in self._files or self._files[path][0] != seen:
                    self._files[path] = seen, file_table(path)
            tables = [self._files[path][1] for path in paths]
        return whole_table(tables, graded=self.data(name).graded)

    def pieces(self, name: str) -> Pieces:
        """Return the function from a stored row of a run to the texts of its tokens."""
        return token_texts(self.folder(name))


def _folders(place: Path) -> list[Path]:
    if (place / "config.yaml").is_file():
        return [place]
    return sorted(path.parent for path in place.glob("*/config.yaml"))


def _name(folder: Path, twice: bool) -> str:
    whole = folder.resolve()
    return f"{whole.parent.name}/{whole.name}" if twice else whole.name


def _signature(paths: Iterable[Path]) -> Signature:
    return tuple(found for path in paths if (found := _seen(path)) is not None)


def _seen(path: Path) -> tuple[str, int, int] | None:
    """Return the name, size and time of change of a file; None for one that is not, or no longer, there."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return path.name, stat.st_size, stat.st_mtime_ns
