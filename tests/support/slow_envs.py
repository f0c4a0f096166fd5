"""Environments that take time, each as long as its example says; and a stage whose answers come in any order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from grouprl.envs import Observation, Step
from grouprl.envs.environment_pool import Call, HereStage
from grouprl.tasks import Example
from toy_envs import AskTask, Counting


class Slow(Counting):
    """Goes on for `turns` turns; `reset` and each step take `seconds`."""

    def reset(self, example: Any, seed: int) -> Observation:
        self.seconds = example.columns["seconds"]
        return super().reset(example, seed)

    def step(self, action: str) -> Step:
        if self.seconds:
            time.sleep(self.seconds)
        return super().step(action)


class AsyncSlow(Slow):
    """The same with coroutines."""

    async def reset(self, example: Any, seed: int) -> Observation:  # type: ignore[override]
        return super().reset(example, seed)

    async def step(self, action: str) -> Step:  # type: ignore[override]
        await asyncio.sleep(self.seconds)
        return Counting.step(self, action)

    async def score(self) -> dict[str, float]:  # type: ignore[override]
        return super().score()

    async def close(self) -> None:  # type: ignore[override]
        super().close()


class SlowTask(AskTask):
    """Episodes of as many turns, of as many seconds each, as the example says."""

    max_turns = 8

    def __init__(self, asynchronous: bool = True) -> None:
        super().__init__()
        self.asynchronous = asynchronous

    def environment(self) -> Any:
        return AsyncSlow() if self.asynchronous else Slow()


class UnevenTask(SlowTask):
    """Every fourth prompt takes a hundred times as long as the others, and most turns."""

    def example(self, split: Any, index: int) -> Any:
        """Return prompt `index`."""
        slow = index % 4 == 1
        columns = {"letter": "a", "turns": 4 if slow else 1 + index % 3, "seconds": 0.2 if slow else 0.002}
        return Example(f"uneven/{split}/{index}", "?", columns)


class LateStage(HereStage):
    """Keeps each answer back for as many calls of `receive` as `delay` says of its episode and number."""

    def __init__(self, make: Callable[[], Any], delay: Callable[[int, int], int]) -> None:
        super().__init__(make)
        self.delay, self._count, self._kept = delay, {}, {}

    def send(self, method: str, calls: Sequence[Call]) -> None:
        super().send(method, calls)
        for number, _ in calls:
            count = self._count[number] = self._count.get(number, -1) + 1
            self._kept[number] = self.delay(number, count)

    def receive(self, seconds: float | None = None) -> list[tuple[int, Any]]:
        while True:
            for number in self._kept:
                self._kept[number] -= 1
            due = [number for number in sorted(self._answers) if self._kept[number] < 0]
            found = [(number, self._answers.pop(number)) for number in due]
            for number in due:
                del self._kept[number]
            if found or seconds is not None or not self._answers:
                return found
