"""Environments of which some hang or end their process, by the seed of their episode; imported by worker processes."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import Any

from grouprl.envs import Observation, Step
from grouprl.tasks import Example
from toy_envs import Asking, AskTask


def misbehave(way: str) -> None:
    """Hang or end the process."""
    if way == "hang":
        time.sleep(60)
    if way == "busy":
        while True:
            pass
    if way == "raise":
        raise ValueError("it cannot be played")
    if way == "exit":
        os._exit(3)
    if way == "segfault":
        ctypes.string_at(0)
    if way == "later":  # ends the process while that of somebody else has it
        threading.Timer(0.05, os._exit, (4,)).start()


class Culprit(Asking):
    """Misbehaves in `where` in the way that the example's column says, if its seed is among the `bad` ones."""

    def reset(self, example: Any, seed: int) -> Observation:
        columns = example.columns
        self.way = columns["way"] if seed in columns["bad"] else ""
        self.where, self.pause = columns["where"], columns.get("pause", 0.0)
        time.sleep(self.pause)
        if self.where == "reset":
            misbehave(self.way)
        return super().reset(example, seed)

    def step(self, action: str) -> Step:
        time.sleep(self.pause)
        if self.where == "step":
            misbehave(self.way)
        return super().step(action)


class AsyncCulprit(Culprit):
    """The same with coroutines."""

    async def reset(self, example: Any, seed: int) -> Observation:  # type: ignore[override]
        return super().reset(example, seed)

    async def step(self, action: str) -> Step:  # type: ignore[override]
        return super().step(action)


class CulpritTask(AskTask):
    """Prompts whose columns say which of their episodes misbehave."""

    def __init__(self, asynchronous: bool = False) -> None:
        super().__init__()
        self.asynchronous = asynchronous

    def environment(self) -> Any:
        return AsyncCulprit() if self.asynchronous else Culprit()


def culprit_example(prompt: int, bad: Any, way: str, where: str, pause: float = 0.0) -> Example:
    """Prompt number `prompt`, whose episodes with a seed in `bad` misbehave."""
    columns = {"letter": "abc"[prompt % 3], "bad": tuple(bad), "way": way, "where": where, "pause": pause}
    return Example(f"culprit/{prompt}", "?", columns)
