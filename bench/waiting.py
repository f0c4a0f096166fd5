"""Environments whose steps take given times, for `bench/slow.py`; in a module of its own, so that workers import it."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from grouprl.envs import Observation, Step
from grouprl.tasks import Example, Task

LETTERS = "abcdefgh>"
ACTION = 8
"""Tokens of an action."""


class Waiting:
    """Each step takes as long as the example's column `seconds` says of it; the last one ends the episode."""

    def reset(self, example: Example, seed: int) -> Observation:
        """Begin."""
        self.seconds, self.done = example.columns["seconds"][seed], 0
        return Observation("abc>")

    def step(self, action: str) -> Step:
        """Take any action."""
        time.sleep(self.seconds[self.done])
        return self._stepped()

    def _stepped(self) -> Step:
        self.done += 1
        return Step(Observation("def>"), 1.0, terminated=self.done == len(self.seconds))

    def score(self) -> dict[str, float]:
        """Nothing beside the turns' rewards."""
        return {}

    def close(self) -> None:
        """Hold nothing."""


class AsyncWaiting(Waiting):
    """The same as coroutines."""

    async def step(self, action: str) -> Step:  # type: ignore[override]
        """Take any action."""
        await asyncio.sleep(self.seconds[self.done])
        return self._stepped()


class WaitingTask(Task):
    """Episodes of given times."""

    name = "waiting"
    alphabet = LETTERS
    max_turns = 64
    max_new_tokens = ACTION
    reward = staticmethod(lambda completion: 0.0)

    def __init__(self, asynchronous: bool) -> None:
        self.asynchronous = asynchronous

    def example(self, split: Any, index: int) -> Example:
        """Return a prompt whose episodes take no time."""
        return Example(f"waiting/{index}", "", {"seconds": [[0.0]]})

    def size(self, split: Any) -> None:
        """Return None: there are as many as one likes."""

    def environment(self) -> Waiting:
        """Return a fresh environment."""
        return AsyncWaiting() if self.asynchronous else Waiting()


def one_slow(prompts: int, each: int, turns: int, seconds: float) -> list[list[list[float]]]:
    """Times [prompt][episode][turn]: `seconds` for every step of one prompt in the middle, none for the others."""
    return [[[seconds * (p == prompts // 2)] * turns for _ in range(each)] for p in range(prompts)]


def log_normal(prompts: int, each: int, turns: int, median: float, sigma: float = 1.0) -> list[list[list[float]]]:
    """Times [prompt][episode][turn], log-normal and independent."""
    rng = random.Random(0)
    return [
        [[median * rng.lognormvariate(0.0, sigma) for _ in range(turns)] for _ in range(each)] for _ in range(prompts)
    ]
