"""The user's own code that a run uses: stored when the run begins, compared when it is resumed."""

from __future__ import annotations

import difflib
import hashlib
import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from grouprl.config.paths import CODE_TASKS, OWN_CODE
from grouprl.config.run import Config
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.storage.run_folder import RunFolder, write_json

PACKAGE = Path(__file__).resolve().parents[1]
DIFFERENCE_LINES = 30
"""Lines of a difference that a message shows."""


def own_code(config: Config) -> dict[str, str]:
    """Return the text, by path, of every user file that the configuration names and of the files that these import.

    Call it after task, method and reward are loaded. Imported modules count if they are in the folder of a named file
    or below it; installed packages are ignored.
    """
    texts = list(_texts(config.model_dump(mode="json")))
    named = {path.resolve() for text in texts for path in _files(text)}
    named |= {path.resolve() for plugin in config.plugins for path in _plugin(plugin)}
    roots = {path.parent for path in named}
    imported = _imported() if roots else set()
    beside = {path for path in imported if any(root in path.parents for root in roots)}
    return {str(path): text for path in sorted(named | beside) if (text := _read(path)) is not None}


def remember(run: RunFolder, code: Mapping[str, str]) -> dict[str, str]:
    """Store the texts in the run folder, so that later changes can be shown, and return the hash of each."""
    if code:
        write_json(run.code, dict(code))
    return {path: _digest_of(text) for path, text in code.items()}


def changed(hashes: Mapping[str, str], moves: Mapping[str, str]) -> list[str]:
    """Return the files that have changed since the run began; `moves` gives the new folder of each moved folder."""
    read = ((path, known, _read(moved_path(path, moves))) for path, known in hashes.items())
    return [path for path, known, text in read if text is None or _digest_of(text) != known]


def moved_path(path: str, moves: Mapping[str, str]) -> Path:
    """Return the path of a file after its folder was moved; the same path if no moved folder holds it."""
    at = Path(path)
    return next((Path(new) / at.relative_to(old) for old, new in moves.items() if at.is_relative_to(old)), at)


def refuse_changes(run: RunFolder, files: list[str], moves: Mapping[str, str]) -> None:
    """Refuse to continue with changed code, showing the difference.

    Raises:
        InputError: always.
    """
    names, verb = ", ".join(str(moved_path(path, moves)) for path in files), "has" if len(files) == 1 else "have"
    raise InputError(
        f"{names} {verb} changed since the run {run.path} began:\n{_difference(run, files, moves)}\n",
        "a resumed run continues exactly as it began",
        "Undo the change, accept it with --accept-changes, or start a new run",
    )


def _difference(run: RunFolder, files: list[str], moves: Mapping[str, str]) -> str:
    recorded: JsonObject = {}
    with suppress(OSError, ValueError):
        recorded = json.loads(run.code.read_bytes())
    lines: list[str] = []
    for path in files:
        before, now = recorded.get(path), _read(moved_path(path, moves))
        if now is None:
            lines.append(f"{path} is gone; if it was moved, give its new path: --set KEY=NEW/PLACE")
        elif before is not None:
            pair = (before.splitlines(), now.splitlines())
            lines += difflib.unified_diff(*pair, f"{path} then", f"{moved_path(path, moves)} now", lineterm="", n=1)
    more = len(lines) - DIFFERENCE_LINES
    return "\n".join([*lines[:DIFFERENCE_LINES], *[f"… and {more} more line{'s' * (more > 1)}"] * (more > 0)])


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(each)


def _files(text: str) -> Iterator[Path]:
    """Yield the files that a setting names: file.py:name, pkg.module:name, scripts on the command line of a program."""
    program = text.startswith("program:")
    for head in CODE_TASKS:
        text = text.removeprefix(head)
    if found := OWN_CODE.fullmatch(text):
        yield Path(found["file"])
    elif ":" in text:
        yield from _of_module(text.rpartition(":")[0])
    elif program:
        with suppress(ValueError):
            yield from (Path(word) for word in shlex.split(text) if word.endswith(".py"))


def _plugin(name: str) -> Iterator[Path]:
    """Yield the file of a plugin that is given as a path or as one of the user's modules."""
    if name.endswith(".py"):
        yield Path(name)
    else:
        yield from _of_module(name)


def _of_module(name: str) -> Iterator[Path]:
    module = sys.modules.get(name)
    file = None if module is None else getattr(module, "__file__", None)
    if file and _is_own(Path(file).resolve()):
        yield Path(file)


def _imported() -> set[Path]:
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return {path for file in files if isinstance(file, str) and _is_own(path := Path(file).resolve())}


def _is_own(path: Path) -> bool:
    return path.suffix == ".py" and "site-packages" not in path.parts and PACKAGE not in path.parents


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").encode(errors="replace").decode()
    except OSError:
        return None
