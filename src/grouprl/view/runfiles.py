"""Reading the files of a run folder: missing or half-written files are named, never fatal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from grouprl.core.display_nouns import worded
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.core.numbers import is_number
from grouprl.core.wording import in_ranges
from grouprl.monitor.outcome import mean_first
from grouprl.records.episode_records import UNDER_WAY
from grouprl.storage.run_folder import runs_meant

MOST_NAMED = 10_000
"""Largest number of lacking steps that are named one by one."""
STORED = ("demonstration", "replay", "reference")
"""Sources of rows that were not sampled for the step."""
DIGITS = 18
"""Digits of the largest whole numbers that are read as such."""
T = TypeVar("T")
D = TypeVar("D")

COMPLETIONS = re.compile(r"\b(?:sampled )?completions\b")
"""Rows, as texts call them where each is a whole completion."""


@dataclass(frozen=True)
class Column:
    """The numbers of one metric, `y`, at the steps `x`; where it has none, a record is left out."""

    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)


def columns_of(records: Sequence[JsonMapping]) -> dict[str, Column]:
    """Return the numbers of records by the names of their metrics, all in one pass: a long run has many of both."""
    found: dict[str, Column] = {}
    for i, record in enumerate(records):
        for name, value in record.items():
            if is_number(value):
                column = found.get(name) or found.setdefault(name, Column())
                column.x.append(float(record.get("step", i)))
                column.y.append(value)
    return found


@dataclass
class RunData:
    """The data of a run for its page; `missing` names the files that could not be read.

    `records` are complete before the first one is asked for.
    """

    folder: Path
    config: str = ""
    records: list[JsonObject] = field(default_factory=list)
    samples: list[JsonObject] = field(default_factory=list)
    summary: JsonObject = field(default_factory=dict)
    findings: list[JsonObject] | None = None
    rollouts: list[dict[str, object]] = field(default_factory=list)
    rollout_file: str = ""
    missing: list[str] = field(default_factory=list)

    @property
    def graded(self) -> bool:
        """True if a reward of the run is known to be graded, so that no completion counts as right or wrong."""
        evaluated = (record.get("eval/graded") for record in self.of_phase("eval"))
        # A stored row may lack a verdict, whatever evaluations know.
        told = [row for row in self.rollouts if row.get("reward") is not None and row.get("source") not in STORED]
        stored = (row.get("correct") is None for row in told if row.get("ended") != UNDER_WAY)
        return any((self.summary.get("graded"), *evaluated, *stored))

    @property
    def mean_first(self) -> bool:
        """True if the mean reward of evaluations says more than their shares: of graded rewards, and of returns."""
        return self.graded or any(map(mean_first, self.of_phase("eval")))

    def of_phase(self, phase: str) -> list[JsonObject]:
        """Return the records of one phase, in order."""
        return self._phases.get(phase, [])

    def columns(self, phase: str) -> Mapping[str, Column]:
        """Return the numbers of one phase by the names of their metrics, in the order in which they first appear."""
        if phase not in self._columns:
            self._columns[phase] = columns_of(self.of_phase(phase))
        return self._columns[phase]

    @cached_property
    def _phases(self) -> dict[str, list[JsonObject]]:
        found: dict[str, list[JsonObject]] = {}
        for record in self.records:
            if isinstance(phase := record.get("phase", "train"), str):  # a damaged record may hold anything
                found.setdefault(phase, []).append(record)
        return found

    @cached_property
    def _columns(self) -> dict[str, Mapping[str, Column]]:
        return {}

    @property
    def pieces(self) -> bool:
        """True if an episode may be several rows: of several agents, or of several steps."""
        return self.summary.get("pieces") is True

    @property
    def reward_is(self) -> str:
        """The measure of the task that its rewards are, such as 'minus the length'; '' if none is known."""
        found = self.summary.get("reward_is")
        return found if isinstance(found, str) else ""

    def of_rows(self, text: str) -> str:
        """Return a text about sampled rows in the terms of the run; `worded`, but for rows that are pieces."""
        return self.worded(COMPLETIONS.sub("rows", text) if self.pieces else text)

    def worded(self, text: str) -> str:
        """Return a text of the page in the terms of the run's policy: tokens and completions, or actions, episodes."""
        return worded(text, actions=self.summary.get("actions") is True)


def read_run(folder: Path, *, rollouts: bool = True) -> RunData:
    """Read a run folder; `rollouts`: whether to read stored completions, too, of the newest step that has any."""
    run = RunData(folder)
    run.config = _try(run, "config.yaml", lambda p: p.read_text("utf-8"), "")
    run.records = _try(run, "metrics.jsonl", read_records, [])
    steps = {step for record in run.of_phase("train") if isinstance(step := record.get("step"), int)}
    if lost := _lost(steps):
        run.missing.append(f"metrics.jsonl lacks {lost}")
    run.summary = _try(run, "summary.json", _object, {})
    run.findings = _try(run, "health.json", _rows, None)
    if run.summary.get("finished") is not False or (folder / "samples.json").exists():  # written at a run's end
        run.samples = _try(run, "samples.json", _rows, [])
    files = sorted(folder.glob("rollouts/step-*.parquet")) if rollouts else []
    if rollouts and not files and run.of_phase("train"):
        run.missing.append("rollouts/ holds no Parquet file")
    for path in reversed(files[-3:]):
        run.rollouts = _try(run, f"rollouts/{path.name}", _table, [])
        run.rollout_file = path.name
        if run.rollouts:
            break
    if run.graded:
        _unmark(run)
    return run


def _lost(steps: Collection[int]) -> str:
    """Return in words the steps that are lacking before the last one; "" for none."""
    gaps = [range(before + 1, after) for before, after in pairwise([0, *sorted(steps)])]
    count = sum(map(len, gaps))
    if count > MOST_NAMED:
        return f"{count:,} of the steps before step {max(steps)}"
    return in_ranges([step for gap in gaps for step in gap]) if count else ""


def _unmark(run: RunData) -> None:
    """Remove the marks of right and wrong that were stored before a reward turned out to be graded."""
    for record in (*run.of_phase("eval"), *(run.summary.get(when) for when in ("before", "after"))):
        if isinstance(record, dict) and record:
            record["eval/graded"] = 1.0
    for row in run.rollouts:
        row["correct"] = None
    for row in run.samples:
        row |= {"before_correct": None, "after_correct": None}


def is_graded(folder: Path) -> bool:
    """Return whether the reward of a run is known to be graded, from its evaluations and its summary."""
    run = RunData(folder)
    run.records = _try(run, "metrics.jsonl", read_records, [])
    run.summary = _try(run, "summary.json", _object, {})
    return run.graded


def read_rollouts(folder: Path, step: int | None = None) -> tuple[int, list[JsonObject]]:
    """Return the number and the rows of a stored step, by default the last one.

    Raise InputError if the step is not stored or cannot be read.
    """
    files = {int(path.stem.partition("-")[2]): path for path in sorted(folder.glob("rollouts/step-*.parquet"))}
    if not folder.is_dir():
        raise InputError(f"there is no run folder {folder}", "rollouts are stored in a run folder", runs_meant(folder))
    if not files:
        raise InputError(
            f"no rollouts are stored in {folder}", "run.rollouts_every sets which steps are stored", "Check the path"
        )
    number = max(files) if step is None else step
    if number not in files:
        near = min(files, key=lambda other: abs(other - number))
        raise InputError(
            f"step {number} is not stored in {folder}", "run.rollouts_every sets which steps are", f"Nearest: {near}"
        )
    try:
        rows = _table(files[number])
    except (OSError, ValueError) as error:
        raise InputError(f"{files[number]}: {error}") from error
    return number, [row | {"correct": None} for row in rows] if is_graded(folder) else rows


def read_records(path: Path) -> list[dict[str, object]]:
    """Return the records of a metrics.jsonl without truncated or damaged lines, those with an impossible step too."""
    records = []
    for line in path.read_text("utf-8", errors="replace").split("\n"):
        try:
            record = json.loads(line, parse_int=_whole) if line.strip() else None
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and _possible(record.get("step")):
            records.append(record)
    return records


def _whole(text: str) -> int | float:
    """Return a whole number of a record; one with too many digits to be counted is as large as a float says."""
    return int(text) if len(text) <= DIGITS else float(text)


def _possible(step: object) -> bool:
    """Return whether a record's step is one that a run can have, or is not stated."""
    return step is None or (isinstance(step, int) and not isinstance(step, bool) and step >= 0)


def _try(run: RunData, name: str, read: Callable[[Path], T], default: D) -> T | D:
    """Read a file of the run; note an error in `run.missing` and return the default."""
    path = run.folder / name
    try:
        return read(path)
    except FileNotFoundError:
        run.missing.append(f"{name} is missing")
    except (OSError, ValueError, TypeError) as error:
        run.missing.append(f"{name} could not be read ({type(error).__name__}: {str(error)[:200]})")
    return default


def _object(path: Path) -> JsonObject:
    data = json.loads(path.read_text("utf-8"))
    if not isinstance(data, dict):
        raise TypeError("an object is expected")
    return data


def _rows(path: Path) -> list[dict[str, object]]:
    data = json.loads(path.read_text("utf-8"))
    if not isinstance(data, list) or not all(isinstance(row, Mapping) for row in data):
        raise TypeError("a list of objects is expected")
    return data


def _table(path: Path) -> list[dict[str, object]]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows: list[JsonObject] = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"damaged Parquet file: {error}") from error
    return rows
