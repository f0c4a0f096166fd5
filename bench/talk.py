"""Environments of known lengths, for `bench/turns.py`; in a module of its own, so that workers can import it."""

from __future__ import annotations

import time
from typing import Any

from grouprl.envs import Observation, Step
from grouprl.tasks import Example, Task

TURNS, ACTION, SEEN, PROMPT = 8, 12, 12, 24
"""Most turns, tokens of an action, of an observation, of the first one."""
LETTERS = "abcdefgh>"


class Talk:
    """Says as much on each turn as the last time, for 1 to `TURNS` turns as the prompt's number says."""

    def reset(self, example: Example, seed: int) -> Observation:
        """Begin."""
        self.turns, self.slow, self.done = example.columns["turns"], example.columns["slow"], 0
        return Observation("a" * (PROMPT - 1))

    def step(self, action: str) -> Step:
        """Take any action."""
        time.sleep(self.slow)
        self.done += 1
        return Step(Observation("b" * SEEN), 1.0, terminated=self.done == self.turns)

    def score(self) -> dict[str, float]:
        """Nothing beside the turns' rewards."""
        return {}

    def close(self) -> None:
        """Hold nothing."""


class TalkTask(Task):
    """Episodes of known lengths."""

    name = "talk"
    alphabet = LETTERS
    max_turns = TURNS
    max_new_tokens = ACTION
    reward = staticmethod(lambda completion: 0.0)

    def example(self, split: Any, index: int) -> Example:
        """Return prompt `index`; its episode has 1 + index mod `TURNS` turns."""
        return Example(f"talk/{index}", "", {"turns": 1 + index % TURNS, "slow": 0.0})

    def size(self, split: Any) -> None:
        """Return None: there are as many as one likes."""

    def environment(self) -> Talk:
        """Return a fresh environment."""
        return Talk()
