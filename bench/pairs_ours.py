"""Worker: this library's own `train` on stored completions, one step per turn.

Arguments: kind, model folder, file of rows, run folder, steps, precision.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from gate import Gate
from grouprl import RunListener
from grouprl.config.run import parse_config
from grouprl.protocols.run_events import EvaluationEnded, StepEnded
from grouprl.training.loop import train
from pairs_job import config


class Gated(RunListener):
    """Takes a step when the gate lets it."""

    def __init__(self) -> None:
        self.gate = Gate()

    def evaluation(self, event: EvaluationEnded) -> None:
        if event.when == "before":
            self.gate.ready()
            self.gate.wait()

    def step(self, event: StepEnded) -> None:
        self.gate.step_done({"loss": event.record["loss"]})
        self.gate.wait()


def main(kind: str, model: str, rows: str, folder: str, steps: str, precision: str) -> None:
    settings = parse_config(config(kind, model, rows, int(steps), precision))
    train(settings, folder=Path(folder), console=Console(quiet=True), listeners=[Gated()])


if __name__ == "__main__":
    main(*sys.argv[1:])
