"""The runs below a folder, each in a line: what was run, how far it got, how it ended."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grouprl.config.run import load_config
from grouprl.core.errors import InputError
from grouprl.monitor.outcome import verdict
from grouprl.view.runfiles import RunData, read_run

TASK_FOLDERS = re.compile(r"^(\w+:)?/.*/")
"""The folders of a task's file."""
State = Literal["running", "finished", "stopped", "unreadable"]


@dataclass(frozen=True)
class RunLine:
    """A run in a listing; `age` is in seconds since its files were last written."""

    name: str
    task: str
    method: str
    steps: int
    of_steps: int
    state: State
    verdict: str
    age: float
    folder: str


def run_lines(root: Path) -> list[RunLine]:
    """Return the runs in the folders below `root`, the one that was written last first; `root` itself if it is a run.

    Raises:
        InputError: there is no such folder.
    """
    if not root.is_dir():
        raise InputError(
            f"the folder {root} does not exist",
            "runs are listed from the folder that holds their folders",
            "Name it: grouprl runs FOLDER",
        )
    configs = [own] if (own := root.resolve() / "config.yaml").is_file() else root.glob("*/config.yaml")
    found = [run_line(path.parent, read_run(path.parent, rollouts=False)) for path in configs]
    return sorted(found, key=lambda line: line.age)


def run_line(folder: Path, run: RunData) -> RunLine:
    """Return the line of one run folder, whose files have been read."""
    age = max(0.0, time.time() - _written(folder))
    done = max((int(step) for record in run.of_phase("train") if (step := record.get("step")) is not None), default=0)
    try:
        config = load_config(str(folder / "config.yaml"), plugins=False)
    except InputError:
        return RunLine(folder.name, "?", "?", done, 0, "unreadable", "", age, str(folder))
    state = _state(folder, run)
    words = _verdict(run, config.steps)
    return RunLine(
        folder.name,
        TASK_FOLDERS.sub(r"\1", config.task_name),
        config.method_name,
        done,
        config.steps,
        state,
        words,
        age,
        str(folder),
    )


def _state(folder: Path, run: RunData) -> State:
    if _is_held(folder / ".lock"):
        return "running"
    return "finished" if run.summary and run.summary.get("finished") is not False else "stopped"


def _verdict(run: RunData, steps: int) -> str:
    """Return how the evaluations before and after training compare; "" until there are both."""
    kept = [run.summary.get(when) for when in ("before", "after")]
    before, after = (each if isinstance(each, Mapping) else {} for each in kept)
    found = verdict(before, after, steps) if run.summary.get("finished") is not False else None
    return "" if found is None or found.kind == "unfinished" else found.kind


def _written(folder: Path) -> float:
    """Return the time of the newest change; 0 if the folder is removed meanwhile."""
    newest = 0.0
    for name in ("summary.json", "metrics.jsonl", "config.yaml"):
        with suppress(OSError):
            newest = max(newest, (folder / name).stat().st_mtime)
    return newest


def _is_held(lock: Path) -> bool:
    """Return whether a process works on the run: it holds the lock of the folder."""
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)  # enough for a shared lock, in a folder that is read only
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
