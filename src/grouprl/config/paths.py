"""Paths in a configuration: those of a YAML file are relative to that file, and a run stores them absolute."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable


OWN_CODE = re.compile(r"(?P<file>[^\n]+\.py):(?P<name>[A-Za-z_][\w.]*(?:,\s*[A-Za-z_]\w*)*)")
"""Matches path/to/file.py:name, or several names of one file, separated by commas."""
CODE_TASKS = ("env:", "tools:", "program:", "control:", "squad:", "pettingzoo:")
"""Prefixes of tasks whose argument may be the user's own code."""
FILE_TASKS = ("jsonl", "pairs", "rollouts", "task_folders", "trajectories")
"""Tasks whose argument is a file or a folder."""
OF_LIBRARY = "minari:"
"""Beginning of an argument that names data of a library, not a file."""
OF_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*")
"""Matches pkg.module:name, the data that a function returns."""
DATA_OPTIONS = {"path": FILE_TASKS, "eval": FILE_TASKS, "folder": ("textworld",), "data": ("alfworld",)}
"""Options that are paths, and the tasks that have them."""
MAYBE_PATHS = {"dataset": ("hf",)}
"""Options that are paths if such a file or folder exists, and the tasks that have them."""
RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}
"""Names that no file can have on Windows."""
GGUF = ".gguf"
"""Suffix of models that are files; an id on the Hub never has it."""
OWN_REFERENCES = ("auto", "initial", "none")
"""The values of `model.reference` that are not folders."""
LONGEST_NAME = 120
"""Largest number of characters in a folder's name; file systems allow 255 bytes, and a suffix is added."""


def absolute_paths(data: Mapping[str, object], base: Path) -> dict[str, object]:
    """Return a configuration, as plain data, with every path in it made absolute; relative paths start at `base`.

    Paths are: files of your own code (`file.py:name`), data of a task (`jsonl:`, `pairs:`, `rollouts:`,
    `task_folders:`, `trajectories:`; of `hf:` and `textworld:` if such a file or folder exists), folders of models
    and of a reference, of a judge's verdicts, `plugins` that are files, `folder` of `sampling.vllm` and
    `sampling.sglang`, and `run.folder`. The command lines of `program:` and `mcp:` are not touched.

    Raises:
        InputError: a model folder does not exist below `base`, but does in the working directory.
    """
    found = dict(data)
    for key, place in (("task", _task), ("method", _code)):
        if key in found:
            found[key] = place(found[key], base)
    if "model" in found:
        found["model"] = _model(found["model"], base)
    if "plugins" in found:
        found["plugins"] = _plugins(found["plugins"], base)
    found = _below(found, "model", "reference", lambda value: _reference(value, base))
    found = _below(found, "reward", "function", lambda value: _code(value, base))
    found = _below(found, "reward", "model", lambda value: _reward_models(value, base))
    found = _below(found, "reward", "judge", lambda value: _judge(value, base))
    found = _below(found, "eval", "metrics", lambda value: _code(value, base))
    for key in ("engine", "tool_calls"):
        found = _below(found, "sampling", key, lambda value: _code(value, base))
    for key in ("vllm", "sglang"):
        found = _below(found, "sampling", key, lambda servers: _with_folder(servers, base))
    return _below(found, "run", "folder", lambda value: _at(value, base))


def folder_name(*words: str) -> str:
    """Join words into a folder name that every file system accepts: letters, digits, `.`, `_`, `-`, `@`, `+`.

    A word that is a path is reduced to its last component.
    """
    parts = [PurePath(part).name for word in words for part in re.split(r"[:\s]+", word)]
    name = re.sub(r"[^\w.@+-]+", "-", "-".join(part for part in parts if part), flags=re.ASCII)
    name = re.sub(r"-{2,}", "-", name).strip("-. ")[:LONGEST_NAME].rstrip("-. ")
    return f"run-{name}" if not name or name.partition(".")[0].lower() in RESERVED else name


def _at(path: object, base: Path) -> object:
    return os.path.abspath(base / Path(path).expanduser()) if isinstance(path, str) and path else path


def _code(value: object, base: Path) -> object:
    """Make the file in each `file.py:name` absolute, at any depth."""
    if isinstance(value, Mapping):
        return {key: _code(each, base) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_code(each, base) for each in value]
    found = OWN_CODE.fullmatch(value) if isinstance(value, str) else None
    return value if found is None else f"{_at(found['file'], base)}:{found['name']}"


def _reference(value: object, base: Path) -> object:
    """Make the folders of a reference absolute; the names of the policy's own stay."""
    if isinstance(value, Mapping):
        return {_reference(name, base): share for name, share in value.items()}
    return value if value in OWN_REFERENCES else _at(value, base)


def _reward_models(value: object, base: Path) -> object:
    """Make the folders of reward models absolute; a name that is not a folder, such as one on the Hub, stays."""
    if isinstance(value, Mapping):
        return {**value, "name": _reward_models(value.get("name"), base)}
    if isinstance(value, list | tuple):
        return [_reward_models(each, base) for each in value]
    found = _at(value, base)
    return found if isinstance(found, str) and Path(found).is_dir() else value


def _judge(value: object, base: Path) -> object:
    """Make the folder of a judge's verdicts absolute, if one is named."""
    if isinstance(value, Mapping) and isinstance(value.get("cache"), str):
        return {**value, "cache": _at(value["cache"], base)}
    return value


def _plugins(plugins: object, base: Path) -> object:
    """Make the plugins that are files absolute; names of modules stay as they are."""
    if isinstance(plugins, list | tuple):
        return [_plugins(each, base) for each in plugins]
    return _at(plugins, base) if isinstance(plugins, str) and plugins.endswith(".py") else plugins


def _task(task: object, base: Path) -> object:
    if isinstance(task, str):
        return _named(task, base)
    if not isinstance(task, Mapping):
        return task
    found = {key: _code(value, base) for key, value in task.items()}
    name = task.get("name")
    if isinstance(name, str):
        found["name"] = _named(name, base)
        kind = name.partition(":")[0]
        for options, sure in ((DATA_OPTIONS, True), (MAYBE_PATHS, False)):
            keys = [key for key, kinds in options.items() if kind in kinds and key in found]
            found |= {key: _data(found[key], base, sure=sure) for key in keys}
    for key in ("examples", "of"):  # the task that another contains
        if isinstance(found.get(key), str | dict):
            found[key] = _task(task[key], base)
    return found


def _named(name: str, base: Path) -> str:
    head = next((head for head in CODE_TASKS if name.startswith(head)), "")
    if head:
        return head + str(_code(name.removeprefix(head), base))
    kind, colon, path = name.partition(":")
    if colon and kind in (*FILE_TASKS, "hf", "textworld", "construct", "solved"):
        # a kind of game or a problem, even if a file here has its name
        named = kind in ("textworld", "construct", "solved") and not re.search(r"[./]", path)
        return name if named else f"{kind}:{_data(path, base, sure=kind in FILE_TASKS)}"
    return str(_code(name, base))


def _data(path: object, base: Path, *, sure: bool) -> object:
    """Make a path absolute if it exists, or if it is `sure` not to be a Hub id."""
    if not isinstance(path, str) or path.startswith(OF_LIBRARY):
        return path
    if OWN_CODE.fullmatch(path):
        return _code(path, base)
    named = OF_MODULE.fullmatch(path) and not _exists(base / path)
    there = bool(path) and not named and (sure or _exists(base / path))
    return _at(path, base) if there else path


def _model(model: object, base: Path) -> object:
    if isinstance(model, str):
        return _model_folder(model, base)
    if not isinstance(model, Mapping):
        return model
    found = dict(model)
    if "name" in found:
        found["name"] = _model_folder(found["name"], base)
    if isinstance(found.get("agents"), Mapping):
        found["agents"] = {agent: _model_folder(name, base) for agent, name in found["agents"].items()}
    return found


def _model_folder(name: object, base: Path) -> object:
    if not isinstance(name, str) or name == "tiny" or not name:
        return name
    if OWN_CODE.fullmatch(name):
        return _code(name, base)
    if name.startswith((".", "~")) or _exists(base / name):
        return _at(name, base)
    if not Path(name).is_absolute() and _exists(Path(name)):
        raise InputError(
            f"there is no {'file' if Path(name).is_file() else 'folder'} {base / name}",
            "paths in a configuration are relative to its file",
            f"There is one in the working directory: {Path(name).resolve()}",
        )
    return _at(name, base) if name.lower().endswith(GGUF) else name


def _below(data: dict[str, object], section: str, key: str, change: Callable[[object], object]) -> dict[str, object]:
    part = data.get(section)
    if not isinstance(part, Mapping) or part.get(key) is None:
        return data
    return {**data, section: {**part, key: change(part[key])}}


def _with_folder(section: object, base: Path) -> object:
    """Make the `folder` of a section absolute, if it has one."""
    return _below({"": section}, "", "folder", lambda value: _at(value, base))[""]


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
