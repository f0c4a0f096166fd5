"""What a run of `controller_cost.py` is made of: an environment that does nothing, and a clock of each process."""

from __future__ import annotations

import atexit
import json
import os
import time
from pathlib import Path
from typing import Literal

from grouprl.envs import Observation, Step
from grouprl.tasks import Example, Task

TURNS = 3


class Idle:
    """An environment of three turns that reads nothing and pays by chance of the prompt."""

    def reset(self, example: Example, seed: int) -> Observation:
        """Begin; half of the episodes of a prompt are paid."""
        self.left, self.paid = TURNS, float(seed % 2)
        return Observation("?")

    def step(self, action: str) -> Step:
        """Count a turn."""
        self.left -= 1
        return Step(Observation("?"), self.paid / TURNS, terminated=self.left == 0)

    def score(self) -> dict[str, float]:
        """Return no components of the reward."""
        return {}

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class IdleTask(Task):
    """Endless prompts of the idle environment."""

    name = "idle"
    alphabet = "?ab"
    max_turns = TURNS
    max_new_tokens = 2
    reward = staticmethod(lambda completion: 0.0)

    def size(self, split: Literal["train", "eval"]) -> None:
        """Return None: there is no last prompt."""

    def example(self, split: Literal["train", "eval"], index: int) -> Example:
        """Return a prompt that says nothing."""
        return Example(f"idle/{index}", "?", {})

    def environment(self) -> Idle:
        """Return an environment."""
        return Idle()


def note_time(folder: Path) -> None:
    """Write the processor time of this process, and its rank if it has one."""
    rank = int(os.environ.get("RANK", "0"))
    (folder / f"{os.getpid()}.json").write_text(json.dumps({"rank": rank, "seconds": time.process_time()}))


if "CLOCKS" in os.environ:
    atexit.register(note_time, Path(os.environ["CLOCKS"]))
