"""A PettingZoo world in which one agent dies, one comes late, and a limit cuts the rest off."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

WRONG: dict[str, Any] = {"nan": float("nan"), "none": None, "huge": 10**400, "digits": "1"}
"""Rewards that are none, by the word for `wrong`."""


class Ferry(ParallelEnv):  # type: ignore[misc]
    """Round t shows t; `early` dies after round 0, `late` comes with round 1; an action is its own reward.

    `odd`: what `late` sees is of another kind; `larger`: it sees two numbers and has four actions, `barred`: but the
    second of them is not legal.
    """

    metadata = {"name": "ferry"}  # noqa: RUF012  the name is PettingZoo's
    possible_agents = ["early", "long", "late"]  # noqa: RUF012

    def __init__(
        self, limit: int = 3, odd: bool = False, wrong: str = "", larger: bool = False, barred: bool = False
    ) -> None:
        self.limit, self.odd, self.wrong, self.agents, self.round = limit, odd, wrong, [], 0
        self.larger, self.barred = larger or barred, barred
        if wrong == "made":
            raise KeyError("no river")

    def observation_space(self, agent: str) -> Box:
        late = agent == "late"
        return Box(0, 10, (2 if self.larger and late else 1,), np.int64 if self.odd and late else np.float32)

    def action_space(self, agent: str) -> Discrete:
        return Discrete(4 if self.larger and agent == "late" else 3, start=5)

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
        seen |= {"long": np.zeros(2, np.float32)} if self.wrong == "wide" else {}
        infos: Any = None if self.wrong == "infos" else dict.fromkeys(shown) if self.wrong == "no info" else {}
        infos = {"late": {"action_mask": [1, 0, 1, 1]}, "long": {"action_mask": [0, 1, 1]}} if self.barred else infos
        infos = {"long": {"action_mask": [1, 1, 1, 1]}} if self.wrong == "mask" else infos
        return (seen, rewards, ended, infos) if self.wrong == "four" else (seen, rewards, ended, cut, infos)

    def _seen(self, agents: list[str]) -> dict[str, np.ndarray]:
        return {agent: np.full(self.observation_space(agent).shape, self.round, np.float32) for agent in agents}


class Pair(Ferry):
    """Two agents from the beginning to the end, of whom one has more to see and to do."""

    possible_agents = ["long", "late"]  # noqa: RUF012

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.larger, self.agents, self.round = True, ["long", "late"], 0
        return self._seen(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        assert actions["long"] in (5, 6, 7)
        assert actions["late"] in (5, 6, 7, 8)
        self.round += 1
        nobody = dict.fromkeys(self.agents, False)
        return self._seen(self.agents), {k: float(v) for k, v in actions.items()}, nobody, nobody, {}

    def action_space(self, agent: str) -> Discrete:
        return Discrete(4 if agent == "late" else 3, start=5)

    def observation_space(self, agent: str) -> Box:
        return Box(0, 10, (2 if agent == "late" else 1,))


def parallel_env(**config: Any) -> Ferry:
    return Ferry(**config)
