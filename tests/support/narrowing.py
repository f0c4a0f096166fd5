"""Worlds whose best choice is closed after the first action, so that what may follow the last one matters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from grouprl.envs import ArrayObservation, Step
from grouprl.envs.joint_world import InTurns, JointStep, Together
from grouprl.protocols import Box, DictSpace, Discrete, Spaces

WORTH = np.array([9.0, 4.0, 1.0], np.float32)
"""What the choices are worth at first; each is worth 1 more after every action."""
OPEN = np.array([False, True, True])


def shown(time: int, legal: np.ndarray | None) -> ArrayObservation:
    values = {"state": np.full(1, time, np.float32), "choices": (WORTH + time)[:, None]}
    return ArrayObservation(values, legal)


class Narrowing:
    """Pays 1 for each action; `cut` and `end` are the numbers of actions after which it is cut, or ends."""

    spaces = Spaces(DictSpace({"state": Box((1,)), "choices": Box((3, 1))}), Discrete(3))

    def __init__(self, cut: int = 99, end: int = 99, closed: bool = False) -> None:
        self._cut, self._end, self._time = cut, end, 0
        self._last = np.zeros(3, bool) if closed else OPEN

    def reset(self, example: Any, seed: int) -> ArrayObservation:
        return shown(0, None)

    def step(self, action: int) -> Step:
        assert self._time == 0 or OPEN[action]
        self._time += 1
        over = self._time in (self._cut, self._end)
        seen: Any = shown(self._time, self._last if over else OPEN)
        return Step(seen, 1.0, self._time == self._end, self._time == self._cut)

    def score(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


class Pair:
    """Two agents with three choices, of which the first one is closed after the first round; cut after `rounds`."""

    agents: ClassVar[tuple[str, ...]] = ("a", "b")
    spaces = Spaces(Box((1,)), Discrete(3))

    def __init__(self, rounds: int = 2) -> None:
        self._rounds, self._round = rounds, 0

    def begin(self, example: Any, seed: int) -> dict[str, object]:
        return {agent: np.zeros(1, np.float32) for agent in self.agents}

    def act(self, actions: Mapping[str, Any]) -> JointStep:
        self._round += 1
        seen: dict[str, object] = {
            agent: ArrayObservation(np.full(1, self._round, np.float32), np.roll(OPEN, number))
            for number, agent in enumerate(self.agents)
        }
        paid = dict.fromkeys(self.agents, 1.0)
        return JointStep({}, paid, seen) if self._round == self._rounds else JointStep(seen, paid)

    def correct(self) -> None:
        return None

    def close(self) -> None:
        pass


class PairInTurns(InTurns):
    def __init__(self) -> None:
        super().__init__(Pair())


class PairTogether(Together):
    def __init__(self) -> None:
        super().__init__(Pair())
