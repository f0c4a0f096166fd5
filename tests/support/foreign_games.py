"""A Gymnasium environment that hangs, as those of others may."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
from gymnasium.spaces import Discrete


class Hangs(gymnasium.Env[int, int]):
    """Hangs in the first action where the seed modulo 3 is `slow`, or in the beginning of odd seeds if `early`."""

    observation_space, action_space = Discrete(4), Discrete(2)

    def __init__(self, early: bool = False, slow: int = -1) -> None:
        self.early, self.slow, self.turns = early, slow, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.seed_number = seed or 0
        if self.early and (seed or 0) % 2:
            time.sleep(120)
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.turns += 1
        if self.seed_number % 3 == self.slow:
            time.sleep(120)
        return self.turns, 0.0, False, False, {}


gymnasium.register("Hangs-v0", entry_point=Hangs, max_episode_steps=8)
