"""Worker: this library's own `train`, one step per turn. Arguments: job, model folder, run folder, steps, quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from gate import Gate
from grouprl.config.run import parse_config
from grouprl.training.loop import train
from grouprl.training.session import Session
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


def main(name: str, model: str, folder: str, steps: int, quick: bool) -> None:
    job = smaller(JOBS[name]) if quick else JOBS[name]
    gate, record = Gate(), Session.record

    def gated(session: Session, values: dict[str, Any]) -> None:
        record(session, values)
        if values["phase"] == "eval" and session.step == 0:
            gate.ready()
            gate.wait()
        if values["phase"] == "train":
            gate.step_done({key: values[key] for key in KEPT if key in values})
            gate.wait()

    Session.record = gated  # type: ignore[method-assign, assignment]
    train(parse_config(job.config(model, steps)), folder=Path(folder), console=Console(quiet=True))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "quick")
