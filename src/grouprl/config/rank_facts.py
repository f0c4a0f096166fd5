"""The facts of a process that is to be a rank: its settings, the files that they name, and its versions.

Ranks that differ in one of them would hold parts of different models, or believe that they train something else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from grouprl.config.extending import PLACED
from grouprl.config.own_code import PACKAGE
from grouprl.config.paths import OWN_CODE
from grouprl.config.run import Config, with_absolute_paths
from grouprl.processes.roll_call import CONTENTS

WHOLE = 2**26
"""Bytes of a file that are read in full; of a larger one `PIECES` pieces are read, evenly spaced."""
PIECES, PIECE = 64, 2**16
MOST = 256
"""Files of a folder that are read."""


def settings_facts(config: Config) -> dict[str, dict[str, str]]:
    """Return the facts of a configuration: its settings by their keys, and what identifies the files that they name.

    Of an absolute path the last part counts: machines may keep the same file in different folders.
    """
    settings = dict(_settings(with_absolute_paths(config).model_dump(mode="json")))
    paths = {
        key: path
        for key, value in settings.items()
        if isinstance(value, str) and not key.startswith("run.") and (path := _named(value)) is not None
    }
    return {
        "settings": {key: json.dumps(_without_folder(x), ensure_ascii=False) for key, x in settings.items()},
        CONTENTS: {f"the contents of {key}": contents(path) for key, path in paths.items()},
    }


def version_facts(versions: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the facts of libraries, given their versions; of Python's, the first two numbers count."""
    libraries = {**versions, "python": ".".join(versions["python"].split(".")[:2])}
    own = {"grouprl's own code": f"hash {_digest_of(sorted(PACKAGE.rglob('*.py')), PACKAGE)}"}
    return {"versions": {f"the version of {name}": version for name, version in libraries.items()} | own}


def contents(path: Path) -> str:
    """Return what identifies the contents of a file, or of the files directly in a folder."""
    if path.is_file():
        return f"{path.stat().st_size:,} bytes, hash {_digest_of([path], path.parent)}"
    files = sorted(each for each in path.iterdir() if each.is_file())
    return f"{len(files)} files, hash {_digest_of(files[:MOST], path)}"


def _settings(value: object, above: str = "") -> Iterator[tuple[str, object]]:
    """Yield the key, with dots for depth, and the value of each setting."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _settings(each, f"{above}.{key}" if above else str(key))
    else:
        yield above, value


def _without_folder(value: object) -> object:
    if isinstance(value, list):
        return [_without_folder(each) for each in value]
    found = PLACED.fullmatch(value) if isinstance(value, str) else None
    return value if found is None else f"{found['head']}…/{found['name']}"


def _named(text: str) -> Path | None:
    """Return the file or folder of this machine that a setting names by an absolute path."""
    found = PLACED.fullmatch(text)
    if found is None:
        return None
    place = f"{found['folder']}/{found['name']}"
    own = OWN_CODE.fullmatch(place)
    path = Path(place if own is None else own["file"])
    return path if path.exists() else None


def _digest_of(files: list[Path], root: Path) -> str:
    whole = hashlib.blake2b(digest_size=6)
    for path in files:
        whole.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode())
        for piece in _pieces(path):
            whole.update(piece)
    return whole.hexdigest()


def _pieces(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= WHOLE:
            yield file.read()
            return
        for number in range(PIECES):
            file.seek((size - PIECE) * number // (PIECES - 1))
            yield file.read(PIECE)
