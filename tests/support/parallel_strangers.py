"""Parallel PettingZoo environments that break its rules."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv


class Rounds(ParallelEnv):  # type: ignore[misc]
    """Three rounds, of which round t pays t to all that act.

    `wrong`: "listed", those that have ended stay in `agents` (`b` ends after round 1); "back", `b` ends after round 1,
    too, is gone for round 2 and back for round 3; "real", an action is one real number and pays itself; "unknown", an
    agent that was not named; "close", it does not close; a list: the names; "nameless", it names none; a mapping: what
    it returns in place of the value of that name ("rewards", "ended", "cut", "infos", "agents"), by agent.
    """

    metadata = {"name": "rounds"}  # noqa: RUF012

    def __init__(self, wrong: Any = "") -> None:
        self.wrong, self.time = wrong, 0
        if wrong != "nameless":
            self.possible_agents = wrong if isinstance(wrong, list) else ["a", "b"]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Box:
        return Box(-9, 9, (1,))

    def action_space(self, agent: str) -> Any:
        return Box(-1, 1, ()) if self.wrong == "real" else Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.time = [*self.possible_agents, *["c"] * (self.wrong == "unknown")], 0
        return self._seen(), {}

    def step(self, actions: dict[str, Any]) -> Any:
        assert self.wrong != "listed" or self.time == 0 or "b" not in actions, "the dead act"
        self.time += 1
        acted, over = list(actions), self.time == 3
        seen = self._seen()
        paid = {agent: float(actions[agent] if self.wrong == "real" else self.time) for agent in acted}
        early = self.wrong == "listed" or (self.wrong == "back" and self.time == 1)
        ended = {agent: over or (early and agent == "b") for agent in self.agents}
        self.agents = self.agents if self.wrong == "listed" else [agent for agent in acted if not ended[agent]]
        if self.wrong == "back" and self.time == 2:
            self.agents = ["a", "b"]
            seen = self._seen()
        odd = self.wrong if isinstance(self.wrong, dict) else {}
        self.agents = odd.get("agents", self.agents)
        cut = dict.fromkeys(acted, False)
        pairs = {"rewards": paid, "ended": ended, "cut": cut, "infos": {}}
        return seen, *(odd.get(name, found) for name, found in pairs.items())

    def close(self) -> None:
        if self.wrong == "close":
            raise RuntimeError("stuck")

    def _seen(self) -> dict[str, np.ndarray]:
        return {agent: np.full(1, self.time, np.float32) for agent in self.agents}


class Seedless(Rounds):
    """Begins as it likes."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()
