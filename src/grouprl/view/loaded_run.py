"""A run's folder as Python reads it: settings, metrics and rollouts as tables, and the page in a notebook."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from grouprl.config.run import Config, load_config
from grouprl.core.errors import InputError, shortened, suggest
from grouprl.core.json_types import JsonObject
from grouprl.core.numbers import is_number
from grouprl.monitor.glossary import lookup
from grouprl.storage.run_folder import RunFolder
from grouprl.view.charts import Series, chart
from grouprl.view.report import framed, page, whole_page
from grouprl.view.runfiles import read_records, read_run

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

T = TypeVar("T")
PHASES = ("train", "eval", "warmup", "pretraining")
"""The phases of a run's records."""


def load_run(path: str | Path) -> LoadedRun:
    """Return what is in a run folder; the run may still be training.

    Raises:
        InputError: `path` is not a run folder.
    """
    if not isinstance(path, str | PathLike):
        raise InputError(f"the run {shortened(path)}", "a run is named by its folder", "Give the path of a run folder")
    return LoadedRun(RunFolder.open(Path(path)))


class LoadedRun:
    """A run that has been made, or is being made. A notebook shows its page."""

    def __init__(self, run: RunFolder) -> None:
        self.folder = run.path
        self._run = run

    def __repr__(self) -> str:
        return f"LoadedRun({str(self.folder)!r})"

    @cached_property
    def config(self) -> Config:
        """Every setting of the run."""
        return load_config(str(self._run.config), plugins=False)

    @property
    def finished(self) -> bool:
        """True once the run has made all its steps and has been evaluated after them."""
        return self.summary.get("finished") is True

    @property
    def summary(self) -> JsonObject:
        """The result of a run that has ended; {} of one that has not."""
        return _stored(self._run.summary, JsonObject())

    @property
    def findings(self) -> list[JsonObject]:
        """The health report's findings."""
        return _stored(self._run.health, list[JsonObject]())

    def metrics(self, phase: str | None = None) -> pandas.DataFrame | pa.Table:
        """Return the records of metrics.jsonl as a table, one row each.

        Args:
            phase: only those of `train`, `eval`, `warmup` or `pretraining`; None: all.

        Raises:
            InputError: there is no such phase.
        """
        wanted = self._records(phase)
        names = dict.fromkeys(name for record in wanted for name in record)
        return _table(pa.table({name: [record.get(name) for record in wanted] for name in names}))

    def rollouts(self, step: int | None = None) -> pandas.DataFrame | pa.Table:
        """Return stored completions as a table, one row each.

        Args:
            step: only those of this step; None: of every stored one.

        Raises:
            InputError: the step is not stored, or none is, or it is not a whole number.
        """
        if isinstance(step, bool) or not isinstance(step, int | None):
            raise InputError(f"step={shortened(step)}", "a step is a whole number, or None for every stored one")
        files = sorted(self._run.rollouts.glob("step-*.parquet"))
        wanted = files if step is None else [self._run.rollout_file(step)]
        if not files or not wanted[0].is_file():
            stored = [int(path.stem.partition("-")[2]) for path in files]
            raise InputError(
                f"no rollouts of {'any step' if step is None else f'step {step}'} in {self.folder}",
                "run.rollouts_every sets which steps are stored",
                f"Stored: {min(stored)} to {max(stored)}" if stored else "",
            )
        return _table(pa.concat_tables(list(map(_rows_of, wanted)), promote_options="permissive"))

    def curves(self, *names: str, phase: str = "train") -> ShownCurves:
        """Return curves of metrics over the steps, which a notebook shows with the glossary's line of each.

        Args:
            names: metrics, at least one, such as `reward_mean` and `entropy`.
            phase: of which records: `train`, `eval`, `warmup` or `pretraining`.

        Raises:
            InputError: no metric is named, one has no finite value in these records, or there is no such phase.
        """
        if not names or not all(isinstance(name, str) for name in names):
            given = ", ".join(map(shortened, names))
            rule, remedy = "a curve is of a metric", "Name each by itself: curves('reward_mean', 'entropy')"
            raise InputError(f"curves({given})" + " without names" * (not names), rule, remedy)
        records = self._records(phase)
        figures = {name: _figure(name, records) for name in names}
        if missing := [name for name, figure in figures.items() if not figure]:
            known = sorted({name for record in records for name, value in record.items() if is_number(value)})
            raise InputError(
                f"no values of '{missing[0]}' in the {phase} records of {self.folder}",
                "only what was recorded can be drawn",
                suggest(missing[0], known) or f"Recorded: {', '.join(known)}",
            )
        return ShownCurves(figures)

    def _records(self, phase: str | None) -> list[dict[str, object]]:
        """Return the records of a phase, or all; there are none before the first step.

        Raises:
            InputError: there is no such phase.
        """
        records = read_records(self._run.metrics) if self._run.metrics.is_file() else []
        known = (*PHASES, *dict.fromkeys(str(record.get("phase")) for record in records))
        if phase is not None and phase not in known:
            raise InputError(f"phase={shortened(phase)}", f"it must be one of {', '.join(PHASES)}, or None for all")
        return [record for record in records if phase in (None, record.get("phase"))]

    def _repr_html_(self) -> str:
        """Return the report in a frame of its own, which nothing of the notebook reaches."""
        return framed(page(read_run(self.folder)))


@dataclass(frozen=True)
class ShownCurves:
    """Curves of a run; a notebook shows them."""

    figures: Mapping[str, str]
    """HTML of the figure of each metric."""

    def __repr__(self) -> str:
        return f"ShownCurves({', '.join(self.figures)})"

    def _repr_html_(self) -> str:
        """Return the figures in a frame of their own."""
        return framed(whole_page(", ".join(self.figures), "", "".join(self.figures.values())))


def _stored(path: Path, otherwise: T) -> T:
    """Return what a JSON file of a run holds, or `otherwise` if there is none.

    Raises:
        InputError: it is damaged.
    """
    try:
        found: T = json.loads(path.read_bytes()) if path.is_file() else otherwise
    except ValueError as error:
        raise _damaged(path, error) from error
    return found


def _rows_of(path: Path) -> pa.Table:
    """Return the rows of a stored step. Raises InputError: the file is damaged."""
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} cannot be read: {error}", "a run writes it whole", "Remove it, or copy the run again")


def _figure(name: str, records: Sequence[Mapping[str, object]]) -> str:
    """Return the figure of a metric over the steps; "" if it has no finite value."""
    points = [(r["step"], r[name]) for r in records if is_number(r.get(name)) and "step" in r]
    try:
        about = lookup(name)
    except InputError:  # of a part that this version does not know
        words = ""
    else:
        words = f"{about.words} Look for: {about.good}."
    return chart(name, words, [Series(name, [x for x, _ in points], [y for _, y in points])])  # type: ignore[misc]


def _table(found: pa.Table) -> pandas.DataFrame | pa.Table:
    """Return a data frame of pandas where it is installed, else the table of pyarrow."""
    return found.to_pandas() if find_spec("pandas") is not None else found
