"""Worker: this library's own `train`, one step per turn. Arguments: job, model folder, run folder, steps, quick."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from gate import Gate
from grouprl import RunListener
from grouprl.config.run import parse_config
from grouprl.protocols.run_events import EvaluationEnded, StepEnded
from grouprl.training.loop import train
from jobs import JOBS, smaller

KEPT = (
    "seconds_rollout",
    "seconds_score",
    "seconds_update",
    "tokens",
    "rows_trained",
    "groups_zero_variance",
    "reward_mean",
)


class Gated(RunListener):
    """Takes a step when the gate lets it."""

    def __init__(self) -> None:
        self.gate = Gate()

    def evaluation(self, event: EvaluationEnded) -> None:
        if event.when == "before":
            self.gate.ready()
            self.gate.wait()

    def step(self, event: StepEnded) -> None:
        if event.phase == "train":
            self.gate.step_done({key: event.record[key] for key in KEPT if key in event.record})
            self.gate.wait()


def main(name: str, model: str, folder: str, steps: int, quick: bool) -> None:
    job, quiet = smaller(JOBS[name]) if quick else JOBS[name], Console(quiet=True)
    train(parse_config(job.config(model, steps)), folder=Path(folder), console=quiet, listeners=[Gated()])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "quick")
