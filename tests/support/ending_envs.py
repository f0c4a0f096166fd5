"""Environments whose beginning ends the process, hangs, raises or is garbage, by the prompt; imported by workers."""

from __future__ import annotations

import os
import time
from typing import Any

from grouprl.envs import Observation, Step

WAYS = ("exit", "raise", "garbage", "signal", "well", "well", "well", "well")


class Ending:
    """Begins as the prompt's seed says."""

    def reset(self, example: Any, seed: int) -> Any:
        way = WAYS[example.columns["seed"] % len(WAYS)]
        if way == "exit":
            os._exit(7)
        if way == "signal":
            os.kill(os.getpid(), 9)
        if way == "raise":
            raise RuntimeError("no beginning")
        self.pid = os.getpid()
        return {"text": 3} if way == "garbage" else Observation(f"{self.pid}>")

    def step(self, action: str) -> Step:
        return Step(Observation("end"), float("a" in action), terminated=True)

    def score(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        time.sleep(0.0)
