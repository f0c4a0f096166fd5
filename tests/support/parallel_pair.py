"""A PettingZoo world of two agents who are there from its beginning to its end, and may not repeat themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv


class Pair(ParallelEnv):  # type: ignore[misc]
    """Round t shows t; an action is its own reward, and closed to who took it in the round before."""

    metadata = {"name": "pair"}  # noqa: RUF012  the name is PettingZoo's
    possible_agents = ["a", "b"]  # noqa: RUF012

    def __init__(self, end: int = 99, leaves: bool = False) -> None:
        self.end, self.leaves, self.agents, self.round = end, leaves, [], 0
        self.last: dict[str, int] = {}

    def observation_space(self, agent: str) -> Box:
        return Box(0, 99, (1,))

    def action_space(self, agent: str) -> Discrete:
        return Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.round, self.last = ["a", "b"], 0, {}
        return self._shown()

    def step(self, actions: dict[str, int]) -> Any:
        assert all(self.last.get(agent) != action for agent, action in actions.items())
        self.round, self.last = self.round + 1, dict(actions)
        seen, infos = self._shown()
        over = dict.fromkeys(self.agents, self.round >= self.end)
        over |= {"b": True} if self.leaves else {}
        paid = {agent: float(action) for agent, action in actions.items()}
        self.agents = [agent for agent in self.agents if not over[agent]]
        return seen, paid, over, dict.fromkeys(over, False), infos

    def _shown(self) -> Any:
        masks = {a: np.array([self.last.get(a) != n for n in range(3)], np.int8) for a in self.agents}
        shown = {agent: np.array([self.round], np.float32) for agent in self.agents}
        return shown, {agent: {"action_mask": mask} for agent, mask in masks.items()}


def parallel_env(**config: Any) -> Pair:
    return Pair(**config)
