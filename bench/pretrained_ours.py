"""Worker: this library's own `train` on a pretrained model, one step per turn.

Arguments: model folder, run folder, steps, precision, device.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from gate import Gate
from grouprl import RunListener
from grouprl.config.run import parse_config
from grouprl.protocols.run_events import EvaluationEnded, StepEnded
from grouprl.training import loop
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


class Gated(RunListener):
    """Takes a step when the gate lets it, and says what a profile found of it."""

    def __init__(self, begin: Callable[[], Profile]) -> None:
        self.gate, self.begin_profile = Gate(), begin

    def evaluation(self, event: EvaluationEnded) -> None:
        if event.when == "before":
            self.profile = self.begin_profile()
            self.gate.ready()
            self.gate.wait()

    def step(self, event: StepEnded) -> None:
        if event.phase == "train":
            kept = {key: event.record[key] for key in KEPT if key in event.record}
            self.gate.step_done(kept | facts_of(self.profile))
            self.gate.wait()


def main(model: str, folder: str, steps: str, precision: str, device: str = "cpu") -> None:
    now = time.process_time if device == "cpu" else time.perf_counter
    begin, sessions = loop.start, list[Session]()

    def start(*arguments: Any) -> Session:
        sessions.append(begin(*arguments))
        return sessions[-1]

    loop.start = start
    gated = Gated(lambda: Profile(sessions[0].policy, int(steps), skipped=UNMEASURED, now=now).__enter__())
    settings = parse_config(config(model, int(steps), precision, device))
    loop.train(settings, folder=Path(folder), console=Console(quiet=True), listeners=[gated])


if __name__ == "__main__":
    main(*sys.argv[1:])
