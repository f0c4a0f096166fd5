"""A run whose project was copied or moved: its settings name files by absolute paths, which may still exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from grouprl.config.run import load_config
from grouprl.core.json_types import JsonMapping
from grouprl.storage.run_folder import RunFolder


def relocated(run: RunFolder, began: str) -> list[str]:
    """Return changes `key=value` that name files of the project in which the run is now.

    `began` is the folder in which the run began ("" if unknown). If the run's folder was copied or moved together with
    its project, each file of the old project that the new one has too is read there: otherwise a copied project
    would still use code of the original.
    """
    roots = _roots(Path(began), run.path.resolve()) if began else None
    if roots is None:
        return []
    settings = load_config(str(run.config), plugins=False).model_dump(mode="json")
    return [f"{key}={json.dumps(value)}" for key, value in _moved(settings, *roots)]


def told_of(run: RunFolder, changes: Sequence[str]) -> list[str]:
    """Return a sentence for the user about relocated files; none if there are none."""
    if not changes:
        return []
    return [f"{run.path} was moved or copied with its project, and reads the files of this one: {', '.join(changes)}"]


def _roots(old: Path, new: Path) -> tuple[Path, Path] | None:
    """Return the folders that differ once all equal names at the end are left out; None if the folder is the same."""
    if old == new:
        return None
    while old.name == new.name != "":
        old, new = old.parent, new.parent
    return old, new


def _moved(settings: JsonMapping, old: Path, new: Path, above: str = "") -> Iterator[tuple[str, object]]:
    """Yield the key and new value of each setting that names a file below `old` which exists below `new`."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _moved(value, old, new, f"{above}{key}.")
        elif (after := _renamed(value, old, new)) != value:
            yield f"{above}{key}", after


def _renamed(value: object, old: Path, new: Path) -> object:
    if isinstance(value, list):
        return [_renamed(each, old, new) for each in value]
    return _place(value, old, new) if isinstance(value, str) else value


def _place(text: str, old: Path, new: Path) -> str:
    """Return a setting such as "env:/old/file.py:Name" with its path below `new`, if that exists."""
    found = re.fullmatch(r"((?:[a-z_]+:)?)" + re.escape(f"{old}/") + r"([^:\n]+)(.*)", text)
    if found is None or not (new / found[2]).exists():
        return text
    return f"{found[1]}{new / found[2]}{found[3]}"
