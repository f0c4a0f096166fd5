"""The process of one run of a comparison: it trains, or continues, the run of a folder and writes its outcome."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from grouprl.config.run import parse_config
from grouprl.core.errors import InputError, RunError
from grouprl.core.terminal import Terminal
from grouprl.experiments.budget import Budget, SpendBudget
from grouprl.experiments.run_outcome import outcome_of
from grouprl.processes.limits import die_with
from grouprl.storage.run_folder import RunFolder, write_json
from grouprl.training.starting import train

SPEC, RUN, OUTCOME = "trial.json", "run", "outcome.json"
"""Files of the folder of a trial: what is to be run, the run folder, and what it came to."""


def write_spec(folder: Path, settings: object, budget: Budget) -> None:
    """Write what `main` reads: every setting of the run, and its budget."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / SPEC, {"settings": settings, "budget": asdict(budget)})


def main(lifeline: str, folder: str) -> None:
    """Make the run of a trial's folder, as a process that ends with its parent."""
    die_with(int(lifeline))
    make_run(Path(folder))


def make_run(folder: Path) -> None:
    """Train the run of a trial until its budget is spent, evaluate it, and write its outcome.

    A run that was cut off continues where its last checkpoint is. One that cannot continue, because its loss is not
    finite or code of the user's fails, has an outcome with an error.

    Raises:
        InputError: the settings do not fit, so that no step was made.
        KeyboardInterrupt: it was asked to stop; a checkpoint is written.
    """
    spec = json.loads((folder / SPEC).read_text(encoding="utf-8"))
    budget, run, error = Budget(**spec["budget"]), RunFolder(folder / RUN), ""
    try:
        if not _ends_here(run):
            _spend(run, spec["settings"], budget)
        if not _ended(run):
            _continued(run)
    except (RunError, InputError) as failed:
        if isinstance(failed, InputError) and not failed.begun:
            raise
        error = str(failed)
    findings = json.loads(run.health.read_text(encoding="utf-8")) if run.health.is_file() else []
    write_json(folder / OUTCOME, outcome_of(run.read_metrics(), budget.unit, error, findings).as_json())


def _spend(run: RunFolder, settings: dict[str, object], budget: Budget) -> None:
    """Train until the budget is spent, or until the configured steps are made."""
    listener, console = SpendBudget(budget), Terminal(quiet=True)
    begun = run.config.is_file()
    source = str(run.path) if begun else parse_config(settings)
    made = train(source, folder=None if begun else run.path, resume=begun, callbacks=[listener], console=console)
    if made is None or not (made.finished or listener.exhausted):
        raise KeyboardInterrupt


def _continued(run: RunFolder) -> None:
    """Let the run end at the step it has reached, which evaluates it."""
    made = train(str(run.path), [f"steps={_steps(run)}"], resume=True, console=Terminal(quiet=True))
    if made is None or not made.finished:
        raise KeyboardInterrupt


def _ends_here(run: RunFolder) -> bool:
    """Return whether the run has made all the steps of its own configuration, so that only its end is to be made."""
    from grouprl.config.run import load_config

    return run.config.is_file() and 0 < load_config(str(run.config), plugins=False).steps == _steps(run)


def _ended(run: RunFolder) -> bool:
    if not run.summary.is_file():
        return False
    summary = json.loads(run.summary.read_text(encoding="utf-8"))
    return summary.get("finished") is True and summary.get("steps") == _steps(run)


def _steps(run: RunFolder) -> int:
    return sum(record.get("phase") == "train" for record in run.read_metrics())
