"""A PettingZoo world in which one agent dies, one comes late, and a limit cuts the rest off."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

WRONG: dict[str, Any] = {"nan": float("nan"), "none": None, "huge": 10**400, "digits": "1"}
"""Rewards that are none, by the word for `wrong`."""


class Ferry(ParallelEnv):  # type: ignore[misc]
    """Round t shows t; `early` dies after round 0, `late` comes with round 1; an action is its own reward."""

    metadata = {"name": "ferry"}  # noqa: RUF012  the name is PettingZoo's
    possible_agents = ["early", "long", "late"]  # noqa: RUF012

    def __init__(self, limit: int = 3, odd: bool = False, wrong: str = "") -> None:
        self.limit, self.odd, self.wrong, self.agents, self.round = limit, odd, wrong, [], 0
        if wrong == "made":
            raise KeyError("no river")

    def observation_space(self, agent: str) -> Box:
        return Box(0, 10, (2 if self.odd and agent == "late" else 1,))

    def action_space(self, agent: str) -> Discrete:
        return Discrete(3, start=5)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.round = ["early", "long"], 0
        found = self._seen(self.agents)
        return found if self.wrong == "alone" else (found, {agent: {} for agent in self.agents})

    def close(self) -> None:
        if self.wrong == "close":
            raise RuntimeError("moored")

    def step(self, actions: dict[str, int]) -> Any:
        assert set(actions) == set(self.agents)
        acted = list(self.agents)
        self.round += 1
        ended = {agent: agent == "early" for agent in acted}
        cut = {agent: agent != "early" and self.round >= self.limit for agent in acted}
        self.agents = [agent for agent in acted if not (ended[agent] or cut[agent])]
        shown = list(acted)
        if self.round == 1:
            self.agents.append("late")
            shown.append("late")
        rewards: Any = {agent: float(action) for agent, action in actions.items()}
        rewards |= {"long": WRONG[self.wrong]} if self.wrong in WRONG else {}
        ended |= {"long": "no"} if self.wrong == "flag" else {}
        seen = {} if self.wrong == "blind" else self._seen(shown)
        infos = None if self.wrong == "infos" else dict.fromkeys(shown) if self.wrong == "no info" else {}
        return (seen, rewards, ended, infos) if self.wrong == "four" else (seen, rewards, ended, cut, infos)

    def _seen(self, agents: list[str]) -> dict[str, np.ndarray]:
        return {agent: np.array([self.round], dtype=np.float32) for agent in agents}


def parallel_env(**config: Any) -> Ferry:
    return Ferry(**config)
