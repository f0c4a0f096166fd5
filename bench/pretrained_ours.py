"""Worker: this library's own `train` on a pretrained model, one step per turn.

Arguments: model folder, run folder, steps, precision, device.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from gate import Gate
from grouprl.config.run import parse_config
from grouprl.training.loop import train
from grouprl.training.profile import Profile
from grouprl.training.session import Session
from pretrained_job import config

KEPT = ("seconds_rollout", "seconds_score", "seconds_update", "tokens", "rows_trained")
UNMEASURED = 1
"""First steps, in which memory is found and kernels are chosen."""


def facts_of(profile: Profile) -> dict[str, Any]:
    """Seconds by part of all measured steps so far, and the products that they could not do without.

    Seconds are the processor's, or on a GPU the wall clock's.
    """
    work = profile.work
    products = {part: [[*shape, times] for shape, times in found.items()] for part, found in work.products.items()}
    return {
        "profiled": profile.taken,
        "parts": dict(profile.clock.seconds),
        "products": products,
        "attention": dict(work.attention),
    }


def main(model: str, folder: str, steps: str, precision: str, device: str = "cpu") -> None:
    gate, record, profiles = Gate(), Session.record, list[Profile]()
    now = time.process_time if device == "cpu" else time.perf_counter

    def gated(session: Session, values: dict[str, Any]) -> None:
        record(session, values)
        if values["phase"] == "eval" and session.step == 0:
            profiles.append(Profile(session.policy, int(steps), skipped=UNMEASURED, now=now).__enter__())
            gate.ready()
            gate.wait()
        if values["phase"] == "train":
            gate.step_done({key: values[key] for key in KEPT if key in values} | facts_of(profiles[0]))
            gate.wait()

    Session.record = gated  # type: ignore[method-assign, assignment]
    train(parse_config(config(model, int(steps), precision, device)), folder=Path(folder), console=Console(quiet=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
