"""The run of a comparison in a process that is killed in the middle of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grouprl.experiments import trial_main
from grouprl.experiments.trial_main import make_run
from grouprl.processes.limits import die_with
from grouprl.protocols.run_events import RunListener, StepEnded

KILLED_AT = 3
"""The step after which the process is killed."""


class Killer(RunListener):
    """Kills its own process after a step, once the step is recorded."""

    def step(self, event: StepEnded) -> None:
        if event.phase == "train" and event.step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)


def train_and_die(*given: Any, callbacks: Sequence[RunListener] = (), **more: Any) -> Any:
    return train(*given, callbacks=[*callbacks, Killer()], **more)


def main(lifeline: str, folder: str) -> None:
    """Make the run of a trial's folder as `trial_main.main` does, and be killed."""
    die_with(int(lifeline))
    setattr(trial_main, "train", train_and_die)  # noqa: B010  # a function is no variable to a type checker
    make_run(Path(folder))


train = trial_main.train
