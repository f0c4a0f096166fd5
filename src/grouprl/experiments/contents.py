"""Hashes of the files of models that a run reads: their names alone do not tell what is in them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from grouprl.core.json_types import JsonMapping


def model_contents(settings: JsonMapping) -> dict[str, str]:
    """Return a hash by path of each model on this machine that settings name: policies, references, scoring models."""
    named = {text for part in (settings["model"], settings["reward"]["model"]) for text in _texts(part)}
    return {text: _hash(Path(text)) for text in sorted(named) if Path(text).is_absolute() and Path(text).exists()}


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from _texts(list(pair))  # the folders of an average of references are keys
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _hash(path: Path) -> str:
    """Return a hash of a file, or of all files of a folder with their names."""
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    whole = hashlib.sha256()
    for each in files:
        known = each.stat()
        whole.update(f"{each.relative_to(path)} {_file_hash(each, known.st_size, known.st_mtime_ns)}\n".encode())
    return whole.hexdigest()[:16]


@lru_cache(maxsize=1024)
def _file_hash(path: Path, size: int, written_ns: int) -> str:  # these two say whether it is the same
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
