"""Environments that misbehave, each in its own way; imported by worker processes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from grouprl.envs import Observation, Step
from toy_envs import Asking, AskTask


class Hard(Asking):
    """Misbehaves as the column `way` says, in the first step unless it says otherwise."""

    def reset(self, example: Any, seed: int) -> Observation:
        self.way, self.seed = example.columns.get("way", ""), seed
        if self.way == "slow reset":
            time.sleep(60)
        first = super().reset(example, seed)
        if self.way == "changed":
            return Observation("?", state=str(time.time_ns()))
        return first

    def step(self, action: str) -> Step:
        if self.way == "hang":
            time.sleep(60)
        if self.way == "exit":
            os._exit(3)
        if self.way == "shout":
            print("it is dark in here")
            os.kill(os.getpid(), 9)
        if self.way == "memory":
            self.held = bytearray(1 << 33)
        if self.way == "raise":
            raise ValueError("the board fell down")
        if self.way == "long":
            return Step(Observation("a" * 2_000_000))
        if self.way == "longest":
            return Step(Observation("a" * 40_000_000))
        if self.way == "text":
            return Step(Observation(b"bytes"))  # type: ignore[arg-type]
        if self.way == "half":
            return Step(Observation("\ud800"))
        if self.way == "endless":
            return Step(Observation("a"))
        if self.way == "once":  # hangs the first time that it is played, wherever that is
            mark = Path(os.environ["GROUPRL_TEST_MARK"])
            if not mark.exists():
                mark.touch()
                time.sleep(60)
        if self.way == "clock":
            return Step(Observation("abc"[time.time_ns() % 3] * (1 + time.time_ns() % 7)))
        return super().step(action)


class HardTask(AskTask):
    """The first of every six prompts misbehaves."""

    def __init__(self, way: str = "", noise: float = 0.0) -> None:
        super().__init__(noise)
        self.way = way

    def example(self, split: Any, index: int) -> Any:
        example = super().example(split, index)
        if index % 6 == 0:
            example.columns["way"] = self.way
        return example

    def environment(self) -> Any:
        return Hard(self.noise)


class Moody(Asking):
    """Raises or hangs at the beginning of some prompts; requests of itself, so that it needs no task."""

    def reset(self, example: Any, seed: int) -> Observation:
        mood = example.columns["seed"] % 8
        if mood == 0:
            raise ValueError("not today")
        if mood == 1:
            time.sleep(60)
        self.letter, self.right = "abc"[mood % 3], False
        return Observation("?", state="start")
