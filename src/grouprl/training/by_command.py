"""A run whose learners are processes of their own: `grouprl train` starts and watches them for `grouprl.train`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from grouprl.config.run import Config, with_absolute_paths
from grouprl.core.errors import RunError
from grouprl.processes import run_with_parent
from grouprl.processes.child_process import ChildProcess
from grouprl.processes.passed_signals import passed_on

INTERRUPTED = (0, 130, 143)
"""Exit codes of a run that is finished, or that was interrupted and can be continued."""


def train_by_command(config: Config, folder: Path, options: Sequence[str]) -> None:
    """Make a new run with these settings in `folder`; its output is that of this process.

    Raises:
        RunError: it ended with an error, which it has printed.
    """
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "run.yaml"
        path.write_text(with_absolute_paths(config).dump(), encoding="utf-8")
        run_command([str(path), "--folder", str(folder.absolute()), *options])


def resume_by_command(folder: Path, changes: Sequence[str], options: Sequence[str]) -> None:
    """Continue the run of `folder` with `changes`; its output is that of this process.

    Raises:
        RunError: it ended with an error, which it has printed.
    """
    run_command([str(folder), "--resume", *(word for change in changes for word in ("--set", change)), *options])


def run_command(words: Sequence[str]) -> None:
    """Run `grouprl train` with these words as a process that ends with this one.

    Raises:
        RunError: it ended with an error, which it has printed.
    """
    command = [sys.executable, "-m", "grouprl", "train", *words]
    process = ChildProcess(run_with_parent.main, *command, output=1, errors=2)
    try:
        with passed_on(process):
            code = process.wait()
    finally:
        process.end()
    if code not in INTERRUPTED:
        raise RunError(f"the run ended with exit code {code}; it has said why on standard error")
